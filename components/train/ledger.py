"""The ledger: which shards of an epoch are to do, held, running and done, and which worker has them.

A worker holds the shard that it is to run next while it still runs another, so that the shard can be fetched to it ahead.
A shard whose worker is lost goes back to the front of the queue. Every example is trained at least once; those of a shard that
was handed out again after it had begun are counted as possibly repeated.
"""

import random
import threading
from collections import deque
from collections.abc import Collection, Sequence
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
    """One epoch's shards. All methods may be called from any thread, those that name a worker by one at a time."""

    tasks: Sequence[Task]
    rows_done: int = 0
    rows_repeated: int = 0
    """Rows of shards that were handed out again: a lost worker may have trained a part of them."""
    _todo: deque[Task] = field(init=False)
    _held: dict[str, Task] = field(default_factory=dict)
    """What each worker is to run next, at most one."""
    _running: dict[str, Task] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _paused: bool = False
    _closed: bool = False

    def __post_init__(self) -> None:
        self._todo = deque(self.tasks)

    @classmethod
    def of_epoch(cls, shards: Sequence[Shard], epoch: int, seed: int, batch_size: int, done: Collection[str] = ()) -> "Ledger":
        """The shards of an epoch in an order drawn from seed and epoch; earlier epochs count for the step numbers, and so do
        the shards of the files `done`, which are left out."""
        shuffled = random.Random(f"{seed}:{epoch}").sample(shards, len(shards))
        step = epoch * steps_of(shards, batch_size)
        tasks = []
        for shard in shuffled:
            if shard.file not in done:
                tasks.append(Task(shard, step))
            step += steps_of([shard], batch_size)
        return cls(tasks)

    def take(self, worker: str) -> Task | None:
        """What an idle worker is to run next, and now holds: what it holds already, else the first that nobody has, else what
        another holds that is still busy. Waits while others run, since a shard may come back. None when all are done or the
        ledger was closed.
        """
        with self._changed:
            while not self._closed and self._unfinished():
                if (task := self._held.get(worker) or self._next()) is not None:
                    self._held[worker] = task
                    return task
                self._changed.wait()
            return None

    def take_ahead(self, worker: str) -> Task | None:
        """What a busy worker is to run after its running shard, and now holds. None when no shard is left that nobody has."""
        with self._changed:
            assert worker in self._running, "an idle worker takes, it does not take ahead"
            if not self._todo:
                return None
            self._held[worker] = self._todo.popleft()
            return self._held[worker]

    def start(self, worker: str) -> bool:
        """The worker begins to run what it holds; waits while the ledger is paused. False when the ledger was closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or self._closed)
            if not self._closed:
                self._running[worker] = self._held.pop(worker)
            return not self._closed

    def done(self, worker: str) -> None:
        """The worker has run its shard."""
        with self._changed:
            self.rows_done += self._running.pop(worker).shard.rows
            self._changed.notify_all()

    def give_back(self, worker: str) -> None:
        """The worker is lost, or its call failed: what it holds or runs is to do again."""
        with self._changed:
            if (held := self._held.pop(worker, None)) is not None:
                self._todo.appendleft(held)
            if (running := self._running.pop(worker, None)) is not None:
                self.rows_repeated += running.shard.rows
                self._todo.appendleft(running)
            self._changed.notify_all()

    def pause(self) -> None:
        """Lets no further shard begin, and waits until none runs."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: not self._running)

    def resume(self) -> None:
        """Ends a pause."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Hands out nothing more: the run is ending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def complete(self) -> bool:
        with self._changed:
            return not self._unfinished()

    def _unfinished(self) -> bool:
        return bool(self._todo or self._held or self._running)

    def _next(self) -> Task | None:
        """Takes a shard from the queue, else from a worker that is busy with another."""
        if self._todo:
            return self._todo.popleft()
        busy = next((worker for worker in self._running if worker in self._held), None)
        return self._held.pop(busy) if busy else None


def steps_of(shards: Sequence[Shard], batch_size: int) -> int:
    """Steps that a pass over `shards` takes: each shard is cut into batches by itself."""
    return sum(-(-shard.rows // batch_size) for shard in shards)
