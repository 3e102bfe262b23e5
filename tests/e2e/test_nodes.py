"""Which images go from a node before another one comes."""

from __future__ import annotations

from e2e.local import nodes

# As containerd 1.6 writes it: an image under its name and under its configuration's digest.
LISTED = """\
REF                                TYPE                   DIGEST    SIZE      PLATFORMS   LABELS
docker.io/tabletune/operator:0.1.0 vnd.docker.manifest.v2 sha256:m1   134.3 MiB linux/amd64 -
docker.io/tabletune/plugin:0.1.0   vnd.docker.manifest.v2 sha256:m2   2.5 MiB   linux/amd64 -
registry.k8s.io/pause:3.10         vnd.docker.manifest.v2 sha256:m3   1.4 MiB   linux/amd64 -
sha256:c0                          vnd.docker.manifest.v2 sha256:m0   134.2 MiB linux/amd64 -
sha256:c1                          vnd.docker.manifest.v2 sha256:m1   134.3 MiB linux/amd64 -
sha256:c3                          vnd.docker.manifest.v2 sha256:m3   1.4 MiB   linux/amd64 -
"""


def test_an_image_goes_under_all_its_names_and_so_do_older_ones() -> None:
    found = nodes.outdated(LISTED, "operator-0.1.0")
    assert found == ["docker.io/tabletune/operator:0.1.0", "sha256:c0", "sha256:c1"]


def test_other_images_stay() -> None:
    assert nodes.outdated(LISTED, "profiler-0.1.0") == ["sha256:c0"]
    assert nodes.outdated(LISTED.splitlines()[0], "profiler-0.1.0") == []
