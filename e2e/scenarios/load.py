"""Sends requests until told to stop, and counts; runs in a pod (`python3 load.py SERVER WORKLOAD TEXTS`).

Standard library and aiohttp only. Each request has a connection of its own, so that the Service spreads them.
A line of JSON a second tells what was seen; the last one is the whole.
"""

import asyncio
import json
import pathlib
import random
import sys
import time
from typing import Any

import aiohttp

STOP = pathlib.Path("/tmp/stop")  # noqa: S108
AT_ONCE = 12
"""Six for each of two servers: with fewer, a CPU's steps hardly differ by their drafts' length."""
MAX_TOKENS = 48
SECONDS = 120
WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an"
    " they which one you were her all she there would their we him been has when who will more no if out so"
)
"""Words that hardly any text goes without: most tokens came before, so that they are drafted for, and what
follows them this time is another."""


def body(workload: str, texts: list[str], dice: random.Random) -> dict[str, object]:
    """Return a request: `copying` goes on as one of `texts` began, `sampling` as chance has it."""
    if workload == "copying":
        return {"prompt": dice.choice(texts), "temperature": 0}
    return {"prompt": " ".join(dice.sample(WORDS.split(), 50)) + ".", "temperature": 1}


async def send(
    server: str, workload: str, texts: list[str], dice: random.Random, seen: dict[str, Any]
) -> None:
    """Send requests, one after the other."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    while not STOP.exists():
        request = body(workload, texts, dice) | {
            "model": "model",
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
        }
        try:
            connector = aiohttp.TCPConnector(force_close=True)
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
                session.post(f"{server}/v1/completions", json=request) as answer,
            ):
                content = await answer.json(content_type=None)
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {json.dumps(content)[:200]}")
            seen["answered"] += 1
            seen["tokens"] += content["usage"]["completion_tokens"]
        except Exception as error:
            seen["failed"] += 1
            seen["error"] = f"{type(error).__name__}: {error}"[:300]
            await asyncio.sleep(0.5)


async def main() -> None:
    """Send until told to stop."""
    server, workload = sys.argv[1:3]
    texts = json.loads(sys.argv[3])
    seen = {"workload": workload, "answered": 0, "failed": 0, "tokens": 0, "error": ""}
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(send(server, workload, texts, random.Random(number), seen))  # noqa: S311
        while not STOP.exists():
            await asyncio.sleep(1)
            print(json.dumps(seen | {"seconds": round(time.monotonic() - began)}), flush=True)  # noqa: T201
    print(json.dumps(seen | {"seconds": round(time.monotonic() - began), "whole": True}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
