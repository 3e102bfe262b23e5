"""The entry point that vLLM calls in each of its processes (group ``vllm.general_plugins``).

vLLM calls :func:`register` in API servers, engine cores, workers and helpers, some of them more than once,
and would not start if it raised. Where ``TABLETUNE_TABLE`` is not set it does nothing and imports nothing,
so that an image can carry TableTune for everybody and only those who ask for it get it.
"""

from __future__ import annotations

import os

TABLE_VARIABLE = "TABLETUNE_TABLE"
"""Path of the table document; unset or empty: TableTune stays out of vLLM altogether."""


def register() -> None:
    """Hook into the vLLM of this process, once. Never raises."""
    if not os.environ.get(TABLE_VARIABLE):
        return
    try:
        from tabletune_plugin.engine import hooking

        hooking.install()
    except Exception:
        import logging

        logging.getLogger("tabletune").exception("TableTune could not start; serving goes on without it")
