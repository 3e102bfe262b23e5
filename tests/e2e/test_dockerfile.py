"""What the Dockerfile promises and no build checks: pinned bases, the version, hashes, no root."""

from __future__ import annotations

import re

import pytest

from e2e.images import bases, building
from e2e.settings import REPOSITORY, TARGETS, VERSION

TEXT = (REPOSITORY / "Dockerfile").read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_base_has_a_tag_and_can_be_replaced_by_a_digest() -> None:
    from_lines = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    arguments = {f"${{{name}}}" for name in bases.names()}
    assert {line for line in from_lines if line not in STAGES} == arguments
    for image in bases.names().values():
        assert re.fullmatch(r"[\w.-]+/[\w./-]+:[\w.-]+", image), image
        assert not image.endswith(":latest")


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_of_this_version_and_run_as_no_root(target: str) -> None:
    stage = STAGES[target]
    assert f"ARG VERSION={VERSION}\n" in stage
    assert re.findall(r"^USER (\d+):\d+$", stage, re.MULTILINE)[-1] != "0"
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in stage
    assert "/usr/share/sbom" in stage


def test_stages_in_between_are_those_that_are_no_target() -> None:
    assert set(building.stages()) == set(STAGES) - set(TARGETS)
    assert "operator-files" in building.stages()


def test_packages_of_others_are_installed_by_hash_only() -> None:
    installs = [line for line in re.split(r"(?:&&|^RUN) ", TEXT, flags=re.MULTILINE) if "pip install" in line]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or ("--no-deps" in line and "--no-index" in line), line


def test_copied_files_are_let_into_the_build() -> None:
    allowed = [
        line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE):
        for source in sources.split():
            assert (REPOSITORY / source).exists(), source
            assert any(
                pattern == source
                or pattern.startswith(f"{source}/")
                or source.startswith(pattern.split("*")[0])
                for pattern in allowed
            ), source
