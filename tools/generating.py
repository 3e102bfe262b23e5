"""Writes generated files, or says which are out of date; the scripts `generate_*.py` end in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def run(pages: Mapping[Path, str]) -> None:
    """Write ``pages``, content by path; with ``--check`` write nothing, and end with 1 where one differs."""
    stale = {path: text for path, text in pages.items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is out of date. Run tools/{Path(sys.argv[0]).name}.", file=sys.stderr)
        sys.exit(1 if stale else 0)
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"Written: {path}")
