"""What the pages show is what kustomize builds and the API server takes."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune.api import names
from tests.config import test_llmd
from tests.config.builds import CONFIG, dry_run, kubectl, named, one, overlay
from tests.controlplane.clients import Api, Object
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster

DOCS = CONFIG.parent / "docs"
TITLED = re.compile(r'^```yaml title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^( *)```yaml[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
KNOWN = {names.KIND, "NetworkPolicy"}
"""Kinds of whole objects on pages that the test's API server knows; a Deployment there is a patch."""


def guided(folder: Path, image: str) -> list[Object]:
    """Build the overlay of docs/guide/llm-d.md on a guide whose server has ``image``."""
    files: dict[str, Any] = {
        title: yaml.safe_load(text)
        for title, text in TITLED.findall((DOCS / "guide" / "llm-d.md").read_text())
    }
    kustomization = files.pop("kustomization.yaml")
    decode = yaml.safe_load(test_llmd.DECODE)
    decode["spec"]["template"]["spec"]["containers"][0]["image"] = image
    prefix = {"namePrefix": "optimized-baseline-nvidia-gpu-vllm-"}
    overlay(folder / "guide", prefix | {"resources": ["decode.yaml"]}, {"decode.yaml": decode})
    place = folder / "overlay"
    # The page's checkouts of llm-d and TableTune are elsewhere here.
    base, table = kustomization["resources"]
    assert base.startswith("../llm-d/guides/")
    assert kustomization["components"] == ["../tabletune/config/llm-d"]
    changed = {"resources": ["../guide", table], "components": [os.path.relpath(CONFIG / "llm-d", place)]}
    return overlay(place, kustomization | changed, files)


@pytest.mark.parametrize("image", ["REPLACE_MODEL_SERVER_IMAGE", "docker.io/vllm/vllm-openai:v0.27.1"])
def test_the_guides_overlay_is_taken(tmp_path: Path, image: str, plane: Plane) -> None:
    bodies = guided(tmp_path, image)
    deployment, table = one(bodies, "Deployment"), one(bodies, names.KIND)
    spec = deployment["spec"]["template"]["spec"]
    server = named(spec["containers"], "modelserver")
    assert server["image"] == "docker.io/vllm/vllm-openai:v0.33.0"
    copier = named(spec["initContainers"], "tabletune-plugin")
    assert copier["image"] == "registry.example/tabletune/plugin:0.1.0"
    assert named(spec["volumes"], "tabletune-table")["configMap"]["name"] == table["metadata"]["name"]
    # Profile and serving are of the same engine: model, arguments, drafter.
    model, *arguments = server["args"]
    assert model == table["spec"]["model"]["name"]
    (drafter,) = (one for one in arguments if one.startswith("--speculative-config="))
    assert [one for one in arguments if one != drafter] == table["spec"]["engine"]["args"]
    config = yaml.safe_load(drafter.partition("=")[2])
    wanted = table["spec"]["drafter"]
    assert (config["method"], config["model"]) == (wanted["method"], wanted["model"])
    assert config["num_speculative_tokens"] == max(wanted["draftLengths"])
    for body in bodies:
        body["metadata"].pop("namespace")
    assert "serverside-applied (server dry run)" in dry_run(plane, "default", bodies)


def manifests(page: Path) -> list[Object]:
    """Return the whole objects that the page shows, of kinds that are known here."""
    found = []
    for indent, text in FENCE.findall(page.read_text()):
        plain = "\n".join(line.removeprefix(indent) for line in text.splitlines())
        bodies = yaml.safe_load_all(plain)
        found += [body for body in bodies if isinstance(body, dict) and body.get("kind") in KNOWN]
    return [body for body in found if "spec" in body]


SHOWING = [page for page in sorted(DOCS.rglob("*.md")) if manifests(page)]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_whole_objects_on_pages_are_taken(page: Path, plane: Plane) -> None:
    for body in manifests(page):
        body["metadata"].pop("namespace", None)
        assert "serverside-applied (server dry run)" in dry_run(plane, "default", [body])


COMMAND = re.compile(
    r"(?:^ *\$ |`|Check: `)(kubectl (?:get|patch|annotate|explain) dt\b[^`\n]*)", re.MULTILINE
)
TABLE = re.compile(r"kubectl (?:get|patch|annotate) dt ([A-Za-z0-9][A-Za-z0-9-]*)")


def commands(page: Path) -> list[str]:
    """Return the page's commands on DraftTables, continued lines joined."""
    return COMMAND.findall(page.read_text().replace("\\\n", " "))


COMMANDS = sorted({command for page in DOCS.rglob("*.md") for command in commands(page)})


def test_pages_show_commands_on_draft_tables() -> None:
    assert any("rollbackTo" in command for command in COMMANDS)
    assert any("profile-requested-at" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_draft_tables_do_what_they_say(
    command: str, plane: Plane, api: Api, namespace: str
) -> None:
    found = TABLE.search(command)
    # NAME stands for the reader's.
    name = found[1].lower() if found else "qwen3-8b-h200"
    api.apply(test_llmd.DRAFT_TABLE | {"metadata": {"name": name, "namespace": namespace}})
    plain = command.replace("NAME", name).replace("$(date -Is)", "2026-11-30T09:00:00+00:00").rstrip("& ")
    program, *arguments = shlex.split(plain)
    arguments = [one for one in arguments if one not in ("-w", "--watch")]
    changes = arguments[0] in ("patch", "annotate")
    told = kubectl(
        *arguments,
        *("--kubeconfig", str(plane.kubeconfig()), "--namespace", namespace),
        *(["--dry-run=server"] if changes else []),
    )
    assert program == "kubectl"
    if changes:
        assert (
            f"drafttable.tabletune.dev/{name} {'patched' if arguments[0] == 'patch' else 'annotated'}" in told
        )
        assert "(no change)" not in told or "null" in command
