"""Base images for a machine that reaches no registry, made of Debian packages under the names that the
Dockerfile's FROM lines give, so that the Dockerfile itself is what is built and tested.

They hold what the Dockerfile and the pods use of the real ones, and are not those: Debian's Python instead of
Python's own build, Debian's busybox, the files of the same packages for the base without a shell; and for
vLLM an image whose vLLM is mounted (``e2e/engines.py``).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from e2e import commands, engines
from e2e.images.buildah import Buildah
from e2e.local import mounts
from e2e.local.machines import MachineError
from e2e.settings import REPOSITORY, Settings

SUITE = "bookworm"
PACKAGES = (
    *("busybox-static", "ca-certificates", "python3", "python3-pip", "python3-venv"),
    # What vLLM's CPU build and the compilers of torch need.
    *("g++", "libnuma1", "python3-dev"),
)
BOOTSTRAP_SECONDS = 1_200.0

RUNTIME_PACKAGES = (
    *("base-files", "ca-certificates", "tzdata", "libc6", "libgcc-s1", "libgomp1", "libstdc++6"),
    *("libssl3", "libbz2-1.0", "libdb5.3", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libtinfo6"),
    *("libreadline8", "libsqlite3-0", "libuuid1", "zlib1g", "libcrypt1", "libnsl2", "libtirpc3"),
    *("libcom-err2", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal"),
)
"""Debian packages of the base without a shell."""
_NOT_NEEDED = re.compile(r"/usr/share/(doc|man|lintian|locale|python3?|binfmts)(/|$)")

PASSWORDS = """\
root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
"""
GROUPS = "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n"


def names() -> dict[str, str]:
    """Return the Dockerfile's base images by the build argument that names each."""
    text = (REPOSITORY / "Dockerfile").read_text()
    return dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", text, re.MULTILINE))


def ensure(settings: Settings, tell: Callable[[str], None]) -> None:
    """Make the base images that are missing."""
    buildah = Buildah(settings)
    makers = {
        "PYTHON_IMAGE": _python,
        "RUNTIME_IMAGE": _runtime,
        "BUSYBOX_IMAGE": _busybox,
        "VLLM_IMAGE": _vllm,
    }
    wanted = {argument: image for argument, image in names().items() if not buildah.identity(image)}
    if not wanted:
        return
    root = system(settings, tell)
    work = settings.state / "images" / "work"
    for argument, image in wanted.items():
        tell(f"Base image {image}")
        shutil.rmtree(work, ignore_errors=True)
        makers[argument](buildah, image, root, work)
    shutil.rmtree(work, ignore_errors=True)


def system(settings: Settings, tell: Callable[[str], None]) -> Path:
    """Return the folder of a Debian system, made where it is missing; raises :class:`MachineError`."""
    root = settings.state / "images" / "root"
    if not (root / "complete").exists():
        tell("A Debian system for the base images (debootstrap; a minute)")
        try:
            _bootstrap(root)
        except commands.CommandError as error:
            raise MachineError(f"Debian's packages could not be fetched. {error}") from error
    return root


def _bootstrap(root: Path) -> None:
    # One that was killed leaves /proc mounted there.
    mounts.remove(root)
    shutil.rmtree(root, ignore_errors=True)
    include = f"--include={','.join(PACKAGES)}"
    commands.run(
        ["debootstrap", "--variant=minbase", include, SUITE, root, _mirror()], timeout=BOOTSTRAP_SECONDS
    )
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "complete").touch()


def _mirror() -> str:
    """Return the first mirror of the machine's own package sources."""
    listed = commands.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    if not listed.strip():
        raise commands.CommandError("apt-get knows no package sources: its sources.list is empty.")
    return listed.split()[0]


def _python(buildah: Buildah, image: str, root: Path, _: Path) -> None:
    buildah.commit_folder(image, root, "--cmd=python3", "--env=LANG=C.UTF-8")


def _vllm(buildah: Buildah, image: str, root: Path, work: Path) -> None:
    """vLLM's image, whose vLLM is where the engine's volume is mounted."""
    work.mkdir(parents=True)
    commands.run(["cp", "--archive", "--reflink=auto", f"{root}/.", work])
    packages = work / "usr/local/lib/python3.11/dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "engine.pth").write_text(f"{engines.PACKAGES}\n")
    script = work / "usr/local/bin/vllm"
    # Guarded, since processes that it spawns import it.
    script.write_text(
        "#!/usr/bin/python3\n"
        "from vllm.entrypoints.cli.main import main\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    script.chmod(0o755)
    buildah.commit_folder(image, work, '--entrypoint=["vllm","serve"]', "--env=LANG=C.UTF-8")


def _runtime(buildah: Buildah, image: str, root: Path, work: Path) -> None:
    """A base of Python alone: the files of its packages, and neither a shell nor a package manager."""
    # /lib and the like are links into /usr, whose folders are needed before what lies behind the links.
    for folder in ("bin", "sbin", "lib", "lib64"):
        (work / "usr" / folder).mkdir(parents=True)
    listed = commands.run(["chroot", root, "dpkg-query", "--listfiles", *RUNTIME_PACKAGES]).splitlines()
    files = sorted({f".{line}" for line in listed if line.startswith("/") and not _NOT_NEEDED.match(line)})
    present = [name for name in files if (root / name).exists() or (root / name).is_symlink()]
    archive = work / "files.tar"
    commands.run(
        ["tar", "--directory", root, "--no-recursion", "--create", "--file", archive, "--files-from=-"],
        input="\n".join(present),
    )
    commands.run(["tar", "--directory", work, "--extract", "--file", archive])
    archive.unlink()
    (work / "usr/bin/python3").symlink_to("python3.11")
    certificates = work / "etc/ssl/certs"
    certificates.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "etc/ssl/certs/ca-certificates.crt", certificates)
    (work / "etc/passwd").write_text(PASSWORDS)
    (work / "etc/group").write_text(GROUPS)
    home = work / "home/nonroot"
    home.mkdir(parents=True)
    shutil.chown(home, 65532, 65532)
    (work / "tmp").mkdir(exist_ok=True)
    (work / "tmp").chmod(0o1777)
    buildah.commit_folder(
        image,
        work,
        *("--user=65532", '--entrypoint=["/usr/bin/python3.11"]', "--env=LANG=C.UTF-8"),
        "--workingdir=/home/nonroot",
    )


def _busybox(buildah: Buildah, image: str, root: Path, work: Path) -> None:
    (work / "bin").mkdir(parents=True)
    program = work / "bin/busybox"
    shutil.copy(root / "usr/bin/busybox", program)
    for name in commands.run([program, "--list"]).split():
        with suppress(FileExistsError):
            (work / "bin" / name).symlink_to("busybox")
    (work / "etc").mkdir()
    (work / "etc/passwd").write_text(PASSWORDS)
    (work / "etc/group").write_text(GROUPS)
    buildah.commit_folder(image, work, "--cmd=sh")
