"""Whether to compress the network's gradients: what is faster depends on the network, so it is measured while training."""

import threading
from collections import deque
from collections.abc import Sequence

TRIALS = 3
"""Shards each way before the faster is chosen. The least that one of the last so many took decides: a worker's first call of a
function takes seconds longer, and there are as many of them as workers."""
AGAIN = 50
"""Every so many shards the slower way is tried again: networks change."""


class FasterWay:
    """Chooses among ways to train a shard by what shards took. All methods may be called from any thread."""

    def __init__(self, ways: Sequence[bool]):
        self._seconds = {way: deque[float](maxlen=TRIALS) for way in ways}
        self._given = dict.fromkeys(ways, 0)
        self._calls = 0
        self._lock = threading.Lock()

    def choose(self) -> bool:
        """The way to train the next shard."""
        with self._lock:
            self._calls += 1
            least = min(self._given, key=lambda way: self._given[way])
            tried = all(len(seconds) == TRIALS for seconds in self._seconds.values())
            if not tried or self._calls % AGAIN == 0:
                way = least
            else:
                way = min(self._seconds, key=lambda way: min(self._seconds[way]))
            self._given[way] += 1
            return way

    def took(self, way: bool, seconds: float, examples: int) -> None:
        """A shard of so many examples was trained this way."""
        with self._lock:
            self._seconds[way].append(seconds / examples)
