"""Two pools by GitOps: a base and a folder for each pool, as in config/pools; each with its own table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from e2e import manifests, settings
from e2e.clients import Object
from e2e.scenarios.stories import Story, lookup
from e2e.settings import REPOSITORY, Settings

WHERE = "gitops"
BASE = REPOSITORY / "config" / "pools" / "base"
PINNED = {"first": 1, "last": 2, "draftLength": min(manifests.LENGTHS)}
"""Range that only the second pool's folder has."""


def test_each_pool_gets_a_table_of_its_own(story: Story, chosen: Settings, tmp_path: Path) -> None:
    """Both pools are profiled at once, each on its node; a changed folder profiles its pool alone."""
    story.namespaces.add(WHERE)
    story.client.apply(*manifests.surroundings(chosen, WHERE))
    pools = _repository(chosen, tmp_path)
    names = {}
    for pool, folder in pools.items():
        (table,) = story.client.kustomize(folder)
        names[pool] = table["metadata"]["name"]
        assert table["spec"]["serving"]["selector"]["matchLabels"] == {
            "tabletune.dev/draft-table": names[pool]
        }
        story.client.apply(table)
    for name in names.values():
        story.follow(WHERE, name, 1, 900)
    for pool, name in names.items():
        pods = story.client.objects("pods", WHERE, f"tabletune.dev/draft-table={name}")
        assert {pod["spec"]["nodeName"] for pod in pods} == {pool}
    first, second = settings.POOLS
    tables = {pool: story.document(WHERE, name) for pool, name in names.items()}
    story.say(f"tables {[document['table'] for document in tables.values()]}")
    assert lookup(tables[second])[1] == PINNED["draftLength"]
    assert tables[first]["profile"] != tables[second]["profile"]
    story.show("get", "dt", "--namespace", WHERE)

    jobs = {name: [job["metadata"]["uid"] for job in story.jobs(WHERE, name)] for name in names.values()}
    _write(pools[second] / "pool.yaml", _pool(second, {"steps": 18}))
    story.client.apply(*story.client.kustomize(pools[first]), *story.client.kustomize(pools[second]))
    story.follow(WHERE, names[second], 2, 600)
    assert story.status(WHERE, names[first])["generation"] == 1
    assert [job["metadata"]["uid"] for job in story.jobs(WHERE, names[first])] == jobs[names[first]]
    assert [job["metadata"]["uid"] for job in story.jobs(WHERE, names[second])] != jobs[names[second]]
    story.show("get", "dt", "--namespace", WHERE)


def _repository(chosen: Settings, folder: Path) -> dict[str, Path]:
    """Write a repository as config/pools describes it; return each pool's folder."""
    spec = manifests.draft_table(chosen, "unused", WHERE, "unused")["spec"]
    base = folder / "base"
    replaced = {key: spec[key] for key in ("model", "drafter", "engine")}
    profile = {key: value for key, value in spec["profile"].items() if key != "nodeSelector"}
    patch = [
        *({"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in replaced.items()),
        {"op": "replace", "path": "/spec/profile", "value": profile},
    ]
    _write(
        base / "kustomization.yaml",
        {
            "resources": [os.path.relpath(BASE, base.resolve())],
            "patches": [{"target": {"kind": "DraftTable"}, "patch": yaml.safe_dump(patch)}],
            "configurations": ["references.yaml"],
        },
    )
    (base / "references.yaml").write_text((BASE / "references.yaml").read_text())
    folders = {}
    for pool in settings.POOLS:
        folders[pool] = folder / pool
        _write(
            folders[pool] / "kustomization.yaml",
            {
                "namespace": WHERE,
                "nameSuffix": f"-{pool}",
                "resources": ["../base"],
                "patches": [{"path": "pool.yaml"}],
            },
        )
        _write(folders[pool] / "pool.yaml", _pool(pool, {}))
    return folders


def _pool(pool: str, profile: Object) -> Object:
    spec: dict[str, Any] = {"profile": {"nodeSelector": {settings.POOL_LABEL: pool}, **profile}}
    if pool == settings.POOLS[1]:
        spec["table"] = {"pinned": [PINNED]}
    return {
        "apiVersion": "tabletune.dev/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": "qwen3-8b"},
        "spec": spec,
    }


def _write(path: Path, content: Object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
