"""Lets the documentation's site hold what its pages link to outside of `docs/`: results, data, sources.

MkDocs calls it while it builds (`hooks` in mkdocs.yml). Pages link to files of the repository by relative
paths, which work where the repository is browsed; on the site they would lead nowhere. So each such file is
put under `repository/` on the site, pages as pages and all else as it is, and the links are turned there. A
link to what is not there is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = "repository"
"""Folder of the site for what is not in `docs/`."""

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_log = logging.getLogger("mkdocs.hooks.documentation")


def place(path: Path) -> str:
    """Return where the repository's file ``path`` is on the site.

    >>> place(DOCS / "guide" / "serving.md"), place(ROOT / "CHANGELOG.md")
    ('guide/serving.md', 'repository/CHANGELOG.md')
    """
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return (ELSEWHERE / PurePosixPath(path.relative_to(ROOT).as_posix())).as_posix()


def source(uri: str) -> Path:
    """Return the repository's file that is at ``uri`` on the site; the other way around of :func:`place`."""
    parts = PurePosixPath(uri).parts
    return ROOT.joinpath(*parts[1:]) if parts[0] == ELSEWHERE else DOCS / uri


def targets(path: Path, markdown: str) -> dict[str, Path]:
    """Return the links of the page ``path`` that lead to files of the repository, each with its file."""
    found = {}
    for match in _LINK.finditer(markdown):
        target = Path(os.path.normpath(path.parent / match["path"]))
        if target.is_relative_to(ROOT) and target.is_file():
            found[match["path"]] = target
    return found


def linked(pages: list[Path]) -> set[Path]:
    """Return the files outside of `docs/` that ``pages`` link to, and what those link to in turn."""
    found: set[Path] = set()
    while pages:
        path = pages.pop()
        for target in targets(path, path.read_text()).values():
            if target in found or target.is_relative_to(DOCS):
                continue
            found.add(target)
            if target.suffix == ".md":
                pages.append(target)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/` that pages link to."""
    pages = [source(file.src_uri) for file in files.documentation_pages()]
    for path in sorted(linked(pages)):
        # Those that the navigation has no room for are found by their links.
        inclusion = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place(path), abs_src_path=str(path), inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the page's links to where their files are on the site."""
    here = source(page.file.src_uri)
    known = targets(here, markdown)
    folder = PurePosixPath(page.file.src_uri).parent

    def turned(match: re.Match[str]) -> str:
        path, anchor = match["path"], match["anchor"] or ""
        if path in known:
            return os.path.relpath(place(known[path]), folder) + anchor
        if not Path(os.path.normpath(here.parent / path)).is_relative_to(DOCS):
            _log.warning("%s links to %s, which is no file of the repository.", here.relative_to(ROOT), path)
        return path + anchor

    return _LINK.sub(turned, markdown)
