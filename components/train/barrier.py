"""A barrier: every so often all workers come to rest, something is done, and they go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Barrier:
    """What to do whenever no worker runs, and how often. One that is used for several runs counts on from one to the next."""

    action: Callable[[], None]
    """Called on the thread that iterates over `Workers.run`, which has yielded the result of every shard done by then."""
    every_shards: int = 0
    """Shards done since the last action; 0: never for this reason."""
    every_seconds: float = 0.0
    """Seconds since the last action; 0: never for this reason."""
    _shards: int = 0
    _since: float = field(default_factory=time.monotonic)

    def count(self) -> None:
        """A shard was done."""
        self._shards += 1

    @property
    def due(self) -> bool:
        shards = 0 < self.every_shards <= self._shards
        return shards or 0 < self.every_seconds <= time.monotonic() - self._since

    def act(self) -> None:
        """Does it, and counts anew."""
        self.action()
        self._shards, self._since = 0, time.monotonic()
