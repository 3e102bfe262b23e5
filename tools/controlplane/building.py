"""Builds a real etcd, Kubernetes control plane and Helm from the Go module proxy, once, into
``.cache/controlplane``.

The tests of the operator start these programs (``tests/controlplane/planes.py``), because a mocked API
server agrees with whatever it is told: server-side apply, CEL rules, owner references and RBAC are only
true on the real one. No container engine and no download of programs is needed, only Go.

    python tools/controlplane/building.py              # what the tests need
    python tools/controlplane/building.py kubelet      # another program of a module's `tool` lines

A program is built again only when its module's files, its flags or the Go version changed. The
first build takes five to ten minutes; it runs niced, since it would otherwise spoil whatever is measured
beside it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".cache" / "controlplane"
"""Where the programs lie."""

VERSION = "v1.36.3"
"""Kubernetes' version."""
HELM_VERSION = "v4.3.1"


def _kubernetes_variables() -> dict[str, str]:
    """Return what tells Kubernetes' programs their version, without which kubectl cannot parse it."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{key}": value for package in packages for key, value in values.items()}


@dataclass(frozen=True)
class Program:
    """A command of one of the Go modules beside this file."""

    name: str
    module: str
    package: str
    variables: Mapping[str, str] = field(default_factory=_kubernetes_variables)
    """Go variables that the linker sets: the program's version."""


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
        Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
        Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
        Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
        Program(
            "helm",
            "helm",
            "helm.sh/helm/v4/cmd/helm",
            {"helm.sh/helm/v4/internal/version.version": HELM_VERSION},
        ),
        Program("promql", "promql", ".", {}),
        Program("coredns", "coredns", ".", {}),
    )
}
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "helm", "promql")
"""What the tests of operator and chart start."""


class BuildError(RuntimeError):
    """A program could not be built; says what to do."""


def build(name: str) -> Path:
    """Return the path of the program ``name``, built first where it is missing or out of date.

    Raises :class:`BuildError` where Go is missing or the build fails.
    """
    program = PROGRAMS[name]
    go = shutil.which("go")
    if go is None:
        raise BuildError(
            "Go is not on the PATH. The tests marked `cluster` build etcd and Kubernetes with it."
        )
    path, stamp = FOLDER / name, FOLDER / f"{name}.stamp"
    wanted = _fingerprint(go, program)
    if path.exists() and stamp.exists() and stamp.read_text() == wanted:
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"Building {name} (minutes, the first time) ...", file=sys.stderr, flush=True)
    fresh = path.with_suffix(".new")
    command = [
        go,
        "build",
        "-trimpath",
        "-ldflags",
        _linker_flags(program),
        "-o",
        str(fresh),
        program.package,
    ]
    done = subprocess.run(
        [*_nice(), *command],
        cwd=HERE / program.module,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{name} was not built:\n{done.stderr[-4_000:]}")
    fresh.replace(path)
    stamp.write_text(wanted)
    return path


def _nice() -> list[str]:
    return ["nice", "-n", "19"] if shutil.which("nice") else []


def _linker_flags(program: Program) -> str:
    """Return flags that drop debugging tables and set the program's variables."""
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in program.variables.items())])


def _fingerprint(go: str, program: Program) -> str:
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    folder = HERE / program.module
    files = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
    parts = [version, _linker_flags(program), *(path.read_text() for path in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def run() -> None:
    """Build what the command line names, or what the tests need."""
    try:
        for name in sys.argv[1:] or NEEDED:
            print(build(name))
    except KeyError as error:
        sys.exit(f"{error.args[0]} is none of {', '.join(PROGRAMS)}.")
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    run()
