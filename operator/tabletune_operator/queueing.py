"""Which DraftTable is looked at when: each once at a time, soon after a change, again after a failure.

Kopf's handlers and the correction loop put keys in; workers take them out. Ten changes while a look is
under way make one more look. A failure is tried again after a delay that doubles, so an API server that
comes back is not met by five hundred looks at once. And however often something changes, a DraftTable is
looked at so many times at once and then at a pace: another writer that fights for an object must not make a
race.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from tabletune_operator import errors, metrics
from tabletune_operator.observations import Key

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 60.0
"""Bounds of the delay after failures."""
BURST = 20
"""Looks at one DraftTable that may follow each other at once: a profile that starts takes about ten."""
PACE_SECONDS = 1.0
"""Time between two looks beyond them."""
STUBBORN = 5
"""Conflicts in a row after which they are no old news, but something to tell."""

logger = logging.getLogger("tabletune.operator")


class Queue:
    """Keys that wait, with the time from which they may be taken. For one event loop."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._spent: dict[Key, float] = {}
        """When the looks so far would have ended at the pace; forgotten once that is over."""
        self._changed = asyncio.Event()
        self._dice = dice or random.Random()  # noqa: S311

    def add(self, key: Key, after_seconds: float = 0.0) -> None:
        """Have ``key`` looked at, no later than after ``after_seconds``."""
        when = asyncio.get_running_loop().time() + after_seconds
        self._due[key] = min(when, self._due.get(key, when))
        metrics.QUEUED.set(len(self._due))
        self._changed.set()

    async def take(self) -> Key:
        """Return the key that is due first, as soon as one is, and that nobody else looks at."""
        while True:
            now = asyncio.get_running_loop().time()
            waiting = [
                (max(when, self._spent.get(key, now) - BURST * PACE_SECONDS), key)
                for key, when in self._due.items()
                if key not in self._busy
            ]
            when, key = min(waiting, default=(now + LONGEST_DELAY_SECONDS, None))
            if key is not None and when <= now:
                del self._due[key]
                self._busy.add(key)
                self._spent[key] = max(now, self._spent.get(key, now)) + PACE_SECONDS
                metrics.QUEUED.set(len(self._due))
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(when - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key, again_seconds: float | None = None) -> None:
        """A look at ``key`` ended well; look again after ``again_seconds``, if given."""
        self._busy.discard(key)
        self._failures.pop(key, None)
        self._forget_spent()
        self._changed.set()
        if again_seconds is not None:
            self.add(key, again_seconds)

    def failed(self, key: Key) -> float:
        """A look at ``key`` failed; return the seconds after which it is tried again."""
        self._busy.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(count - 1, 16), LONGEST_DELAY_SECONDS)
        delay *= self._dice.uniform(0.5, 1.0)
        self.add(key, delay)
        return delay

    def failures(self, key: Key) -> int:
        """Return how many looks at ``key`` have failed since one ended well."""
        return self._failures.get(key, 0)

    def _forget_spent(self) -> None:
        now = asyncio.get_running_loop().time()
        # The oldest first: as a rule they end first.
        while self._spent and self._spent[oldest := next(iter(self._spent))] <= now:
            del self._spent[oldest]


async def work(queue: Queue, look: Callable[[Key], Awaitable[float | None]]) -> None:
    """Take keys and look at them, for ever. Whatever a look raises, the next one goes on."""
    while True:
        key = await queue.take()
        try:
            again = await look(key)
        except asyncio.CancelledError:
            # Another operator may lead now. Whoever comes next finds what is left to do.
            queue.done(key, 0.0)
            raise
        except errors.ConflictError as error:
            delay = queue.failed(key)
            level = logging.WARNING if queue.failures(key) >= STUBBORN else logging.DEBUG
            logger.log(level, "%s/%s: %s; tried again in %.0f s", *key, error, delay)
        except errors.UnavailableError as error:
            # The client has told of the outage, once for all.
            delay = queue.failed(key)
            logger.debug("%s/%s: %s; tried again in %.0f s", *key, error, delay)
        except errors.ApiError as error:
            delay = queue.failed(key)
            logger.warning("%s/%s: %s; tried again in %.0f s", *key, error, delay)
        except Exception:
            metrics.RECONCILES.labels(result="failed").inc()
            delay = queue.failed(key)
            logger.exception("%s/%s: a fault in the operator; tried again in %.0f s", *key, delay)
        else:
            queue.done(key, again)
