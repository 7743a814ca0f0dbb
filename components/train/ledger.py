"""The ledger: which shards of an epoch are to do, running and done, and who has them.

A shard whose worker is lost goes back to the front of the queue. Every example is trained at least once; those of a shard
that was handed out again are counted as possibly repeated.
"""

import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paraserve.components.manifest import Shard


@dataclass(slots=True)
class Task:
    """A shard in one epoch."""

    shard: Shard
    first_step: int
    """Number of the first step of this shard, counted over all workers and epochs; decides its learning rates."""


@dataclass(slots=True)
class Ledger:
    """One epoch's shards. All methods may be called from any thread."""

    tasks: Sequence[Task]
    rows_done: int = 0
    rows_repeated: int = 0
    """Rows of shards that were handed out again: a lost worker may have trained a part of them."""
    _todo: deque[Task] = field(init=False)
    _running: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def __post_init__(self) -> None:
        self._todo = deque(self.tasks)

    @classmethod
    def of_epoch(cls, shards: Sequence[Shard], epoch: int, seed: int, batch_size: int) -> "Ledger":
        """The shards of an epoch in an order drawn from seed and epoch; earlier epochs count for the step numbers."""
        shuffled = random.Random(f"{seed}:{epoch}").sample(shards, len(shards))
        step = epoch * steps_of(shards, batch_size)
        tasks = []
        for shard in shuffled:
            tasks.append(Task(shard, step))
            step += steps_of([shard], batch_size)
        return cls(tasks)

    def take(self) -> Task | None:
        """The next shard to do; waits while others run, since one may come back. None when all are done or it was closed."""
        with self._changed:
            while not self._todo and self._running and not self._closed:
                self._changed.wait()
            if self._closed or not self._todo:
                return None
            task = self._todo.popleft()
            self._running += 1
            return task

    def done(self, task: Task) -> None:
        with self._changed:
            self._running -= 1
            self.rows_done += task.shard.rows
            self._changed.notify_all()

    def give_back(self, task: Task) -> None:
        """A shard whose worker was lost."""
        with self._changed:
            self._running -= 1
            self.rows_repeated += task.shard.rows
            self._todo.appendleft(task)
            self._changed.notify_all()

    def close(self) -> None:
        """Hands out nothing more: the run is ending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def complete(self) -> bool:
        with self._changed:
            return not self._todo and not self._running


def steps_of(shards: Sequence[Shard], batch_size: int) -> int:
    """Steps that a pass over `shards` takes: each shard is cut into batches by itself."""
    return sum(-(-shard.rows // batch_size) for shard in shards)
