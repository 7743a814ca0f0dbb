"""Hands shards to workers: one thread for each worker takes the next from the ledger and runs it there."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import tensorflow as tf

from paraserve.components.train.barrier import Barrier
from paraserve.components.train.cluster import PARAMETER_SERVER, WORKER, Cluster, agent, device
from paraserve.components.train.ledger import Ledger, Task
from paraserve.components.train.source import Source, check_fits, open_source

Result = TypeVar("Result")
"""What a worker says of a shard."""
Call = Callable[[Task, str], Result]
"""Runs a shard on the worker of the current device scope, which reads it at the path given second."""
LOSS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    ConnectionError,
)
"""What a call raises when a server is gone, and a fetch when a worker is."""
DISK_BYTES = 1 << 30
"""The disk that copies of shards may take on a worker, where they come from an object store."""
NOTICE_SECONDS = 5.0
"""A call fails before the process's end can be seen; how long to look for it."""
POLL_SECONDS = 0.2
"""How long the end of the last thread may go unseen."""


@dataclass
class Workers:
    """The workers of a run that are still alive."""

    cluster: Cluster
    count: int
    shards: str
    """The packed data set's place."""
    disk_bytes: int = DISK_BYTES
    alive: list[str] = field(init=False)
    """Device names."""
    _agents: dict[str, str] = field(init=False)
    """Addresses of the workers' agents."""
    _excused: dict[str, int] = field(default_factory=dict)
    """For a worker whose call failed though it lives: how many servers were lost by then."""

    def __post_init__(self) -> None:
        self.alive = [device(WORKER, index) for index in range(self.count)]
        spec = self.cluster.cluster_spec()
        self._agents = {w: agent.address_of(spec.task_address(WORKER, i)) for i, w in enumerate(self.alive)}

    def run(self, ledger: Ledger, call: Call[Result], barriers: Sequence[Barrier] = ()) -> Iterator[tuple[Task, Result]]:
        """Runs every shard of the ledger, yielding each as it is done, in the caller's thread.

        Whenever one of `barriers` is due and shards are left, no further shard begins until those that run are done and
        yielded, and the barriers that are due have acted. A lost worker's shards go to others. Raises RuntimeError when a
        parameter server or the last worker is lost, and whatever else `call` and the barriers' actions raise. Closing the
        iterator early ends the threads once their calls return.

        Shards in an object store are fetched to their workers, one ahead of the one that runs. ValueError for one that is
        larger than `disk_bytes`, or is not what its manifest says; OSError for one that cannot be read.
        """
        check_fits(self.shards, ledger.tasks, self.disk_bytes)
        threads = _Threads(self._source, ledger, call)
        for worker in self.alive:
            threads.start(worker)
        try:
            yield from self._results(ledger, threads, barriers)
        finally:
            ledger.close()
        assert ledger.complete, "the threads ended before the shards were done"

    def _source(self, worker: str) -> contextlib.AbstractContextManager[Source]:
        return open_source(self.shards, self._agents[worker], self.disk_bytes)

    def _results(
        self, ledger: Ledger, threads: "_Threads[Result]", barriers: Sequence[Barrier]
    ) -> Iterator[tuple[Task, Result]]:
        paused = False
        while threads.unfinished:
            if paused and threads.silent:
                if not ledger.complete:
                    for barrier in barriers:
                        if barrier.due:
                            barrier.act()
                ledger.resume()
                paused = False
            elif not paused and any(barrier.due for barrier in barriers) and not ledger.complete:
                ledger.pause()
                paused = True
            elif isinstance(outcome := threads.outcome(), _Failure):
                if self._goes_on(outcome):
                    threads.start(outcome.worker)
            elif outcome is not None:
                for barrier in barriers:
                    barrier.count()
                yield outcome

    def _goes_on(self, failure: "_Failure") -> bool:
        """Takes lost workers out; returns whether the one whose call failed is to go on. Raises when the run cannot."""
        if not isinstance(failure.error, LOSS_ERRORS):
            raise failure.error
        lost = self._wait_for_loss(failure.worker)
        if servers := [name for name in lost if f"/job:{PARAMETER_SERVER}/" in name]:
            raise RuntimeError(
                f"parameter server {servers[0]} is lost ({lost[servers[0]]}); run again to resume from the last snapshot"
            ) from failure.error
        for worker in [worker for worker in self.alive if worker in lost]:
            self.alive.remove(worker)
            print(f"worker {worker} is lost ({lost[worker]}); its shard goes to another", flush=True)
        if not self.alive:
            cause = lost[failure.worker]
            raise RuntimeError(
                f"the last worker is lost ({cause}); run again to resume from the last snapshot"
            ) from failure.error
        if failure.worker not in self.alive:
            return False
        # A worker's loss may also fail a call to another, once.
        if self._excused.get(failure.worker, 0) >= len(lost):
            raise failure.error
        self._excused[failure.worker] = len(lost)
        return True

    def _wait_for_loss(self, worker: str) -> dict[str, str]:
        """What is lost, once that explains a failed call to `worker`, or when it has been looked for long enough."""
        deadline = time.monotonic() + NOTICE_SECONDS
        while True:
            lost = self.cluster.lost()
            explained = worker in lost or len(lost) > self._excused.get(worker, 0)
            if explained or time.monotonic() > deadline:
                return lost
            time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Failure:
    worker: str
    error: Exception


@dataclass
class _Threads(Generic[Result]):
    """A thread for each worker, and what they report."""

    source: Callable[[str], contextlib.AbstractContextManager[Source]]
    """Of a worker."""
    ledger: Ledger
    call: Call[Result]
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _outcomes: "queue.SimpleQueue[tuple[Task, Result] | _Failure]" = field(default_factory=queue.SimpleQueue)

    def start(self, worker: str) -> None:
        if worker in self._threads:
            self._threads[worker].join()  # it has reported a failure, and is about to end
        self._threads[worker] = threading.Thread(target=self._work, args=(worker,), name=worker, daemon=True)
        self._threads[worker].start()

    @property
    def unfinished(self) -> bool:
        """Whether there may be more to come."""
        return any(thread.is_alive() for thread in self._threads.values()) or not self.silent

    @property
    def silent(self) -> bool:
        """Whether all that was reported has been seen."""
        return self._outcomes.empty()

    def outcome(self) -> "tuple[Task, Result] | _Failure | None":
        """The next that is reported within POLL_SECONDS, if any."""
        with contextlib.suppress(queue.Empty):
            return self._outcomes.get(timeout=POLL_SECONDS)
        return None

    def _work(self, worker: str) -> None:
        """Ends when the ledger has no more, or at the first error. Reports before the ledger hears of it, so that in a pause
        all is reported."""
        try:
            with self.source(worker) as source:
                while (task := self.ledger.take(worker)) is not None:
                    path = source.path(task)
                    if not self.ledger.start(worker):
                        return
                    if source.fetches_ahead and (ahead := self.ledger.take_ahead(worker)) is not None:
                        source.fetch_ahead(ahead, running=task)
                    with tf.device(worker):
                        result = self.call(task, path)
                    self._outcomes.put((task, result))
                    self.ledger.done(worker)
        except Exception as error:
            self._outcomes.put(_Failure(worker, error))
            self.ledger.give_back(worker)
