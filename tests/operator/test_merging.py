"""An overlay merges as a strategic merge patch of Kubernetes does."""

from __future__ import annotations

from tabletune_operator.merging import merge


def test_objects_merge_by_key_and_null_removes() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9, "c": None}}) == {"a": {"b": 9}, "d": 3}


def test_lists_with_a_merge_key_merge_by_entry() -> None:
    base = {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}
    overlay = {"containers": [{"name": "a", "tty": True}, {"name": "c"}]}
    assert merge(base, overlay) == {
        "containers": [{"name": "a", "image": "1", "tty": True}, {"name": "b"}, {"name": "c"}]
    }


def test_mounts_merge_by_path() -> None:
    base = {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}
    overlay = {"volumeMounts": [{"name": "y", "mountPath": "/x"}]}
    assert merge(base, overlay) == {"volumeMounts": [{"name": "y", "mountPath": "/x"}]}


def test_other_lists_are_replaced() -> None:
    assert merge({"args": ["a", "b"]}, {"args": ["c"]}) == {"args": ["c"]}
    assert merge({"tolerations": [{"key": "a"}]}, {"tolerations": []}) == {"tolerations": []}


def test_directives_delete_and_replace() -> None:
    base = {"env": [{"name": "A"}, {"name": "B"}], "securityContext": {"runAsUser": 1, "fsGroup": 2}}
    overlay = {
        "env": [{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}],
        "securityContext": {"$patch": "replace", "runAsUser": 0},
    }
    assert merge(base, overlay) == {"env": [{"name": "B"}], "securityContext": {"runAsUser": 0}}


def test_neither_side_is_changed() -> None:
    base, overlay = {"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": "1"}]}
    merged = merge(base, overlay)
    merged["env"][0]["value"] = "2"
    assert (base, overlay) == ({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": "1"}]})


def test_nonsense_replaces_instead_of_failing() -> None:
    assert merge({"containers": [{"name": "a"}]}, {"containers": "x"}) == {"containers": "x"}
    assert merge({"containers": [1]}, {"containers": [2]}) == {"containers": [1, 2]}
    assert merge({"a": 1}, 3) == 3
