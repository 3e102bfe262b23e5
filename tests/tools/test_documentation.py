"""The documentation's site builds strictly, needs nothing from the network, and names what is there."""

from __future__ import annotations

import html.parser
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import documentation
from tabletune.api import drafttables, names

ROOT = documentation.ROOT
PAGES = sorted(documentation.DOCS.rglob("*.md"))
FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
"""What a browser fetches by itself, and by which attribute."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the page's code blocks in these languages, without the indentation of a list."""
    for indent, language, text in FENCE.findall(page.read_text()):
        if language in languages:
            yield "\n".join(line.removeprefix(indent) for line in text.splitlines())


def commands(page: Path) -> Iterator[str]:
    """Yield the commands that the page shows, continued lines joined."""
    for text in blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line[2:]
    yield from re.findall(r"`((?:kubectl|helm|make|tabletune) [^`\n]+)`", page.read_text())


def built(folder: Path, docs: Path | None = None) -> subprocess.CompletedProcess[str]:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config |= {"docs_dir": str(docs or documentation.DOCS), "site_dir": str(folder / "site")}
    config["hooks"] = [str(ROOT / hook) for hook in config["hooks"]]
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config))
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", folder / "mkdocs.yml"],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation")
    done = built(folder)
    assert not done.returncode, done.stderr
    return folder / "site"


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found = dict(attributes)
            value = found.get(LOADS.get(tag, "")) or ""
            if re.match(r"(https?:)?//", value) and found.get("rel") not in ("canonical", "edit"):
                elsewhere.append((tag, value))

    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        Reader().feed(page.read_text())
    for sheet in site.rglob("*.css"):
        elsewhere += re.findall(r"(url)\((?:\"|')?(https?://[^)]*)", sheet.read_text())
    assert elsewhere == []


def test_files_outside_of_docs_are_on_the_site(site: Path) -> None:
    results = site / "repository" / "benchmarks" / "results" / "gpu"
    assert (results / "index.html").exists()
    assert (results / "h200-qwen3-4b-eagle3-advised.json").exists()
    text = (site / "guide" / "profiling" / "index.html").read_text()
    assert 'href="../../repository/benchmarks/results/gpu/"' in text


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    done = built(tmp_path, broken(tmp_path, "[gone](../gone.md)"))
    assert done.returncode
    assert "gone.md" in done.stderr


def test_a_broken_anchor_ends_the_build(tmp_path: Path) -> None:
    done = built(tmp_path, broken(tmp_path, "[gone](concepts/tables.md#gone)"))
    assert done.returncode
    assert "gone" in done.stderr


def broken(folder: Path, link: str) -> Path:
    docs = folder / "docs"
    shutil.copytree(documentation.DOCS, docs)
    with (docs / "comparison.md").open("a") as page:
        page.write(f"\n{link}\n")
    return docs


def test_places_and_sources_are_each_others_inverse() -> None:
    for path in (documentation.DOCS / "guide" / "serving.md", ROOT / "CHANGELOG.md"):
        assert documentation.source(documentation.place(path)) == path


def test_a_link_out_of_the_repository_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Named:
        src_uri = "guide/serving.md"

    class Page:
        file = Named()

    with caplog.at_level(logging.WARNING):
        text = documentation.on_page_markdown("[x](../../../elsewhere.md)", Page())  # type: ignore[arg-type]
    assert text == "[x](../../../elsewhere.md)"
    assert "which is no file of the repository" in caplog.text


# What pages name.


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_in_commands_are_there(page: Path) -> None:
    missing = [
        path
        for command in commands(page)
        for path in re.findall(r"(?<![\w/.])((?:config|charts|crds|benchmarks|tools|docs)/[\w./-]+)", command)
        if not (ROOT / path.rstrip("/.")).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_chart_values_in_commands_are_the_charts(page: Path) -> None:
    values = yaml.safe_load((ROOT / "charts" / "tabletune" / "values.yaml").read_text())
    for command in commands(page):
        if "charts/tabletune" not in command:
            continue
        for key in re.findall(r"--set '?([\w.]+)", command):
            found = values
            for part in key.split("."):
                assert part in found, f"{key} is no value of the chart"
                found = found[part]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_are_the_makefiles(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {found for command in commands(page) for found in re.findall(r"^make ([a-z-]+)", command)}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_draft_tables_are_such_as_the_operator_reads(page: Path) -> None:
    for text in blocks(page, "yaml"):
        for body in yaml.safe_load_all(text):
            if isinstance(body, dict) and body.get("kind") == names.KIND and "spec" in body:
                read = drafttables.parse(body["spec"])
                # A field that it does not know is passed over; here that would be a mistake.
                assert set(_keys(body["spec"])) <= set(
                    _keys(read.model_dump(mode="json", by_alias=True, exclude_none=True))
                )


def _keys(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from _keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")
