"""Hands shards to workers: one thread for each worker takes the next from the ledger and runs it there."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import tensorflow as tf

from paraserve.components import storage
from paraserve.components.train.cluster import PARAMETER_SERVER, WORKER, Cluster, device
from paraserve.components.train.ledger import Ledger, Task

Result = TypeVar("Result")
"""What a worker says of a shard."""
Call = Callable[[Task, str], Result]
"""Runs a shard on the worker of the current device scope, which reads it at the path given second."""
LOSS_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError)
"""What a call raises when a server is gone."""
NOTICE_SECONDS = 5.0
"""A call fails before the process's end can be seen; how long to look for it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    worker: str
    error: Exception


@dataclass
class Workers:
    """The workers of a run that are still alive."""

    cluster: Cluster
    count: int
    shards: str
    """The packed data set's place."""
    alive: list[str] = field(init=False)
    """Device names."""
    _excused: dict[str, int] = field(default_factory=dict)
    """For a worker whose call failed though it lives: how many servers were lost by then."""

    def __post_init__(self) -> None:
        self.alive = [device(WORKER, index) for index in range(self.count)]

    def run(self, ledger: Ledger, call: Call[Result]) -> Iterator[tuple[Task, Result]]:
        """Runs every shard of the ledger, yielding each as it is done, in the caller's thread.

        A lost worker's shard goes to another. Raises RuntimeError when a parameter server or the last worker is lost, and
        whatever else `call` raises. Closing the iterator early ends the threads once their calls return.
        """
        results: queue.Queue[tuple[Task, Result] | _Failure] = queue.Queue()
        threads: list[threading.Thread] = []

        def start(worker: str) -> None:
            threads.append(threading.Thread(target=_work, args=(worker, self.shards, ledger, call, results), daemon=True))
            threads[-1].start()

        for worker in self.alive:
            start(worker)
        try:
            # When every thread has ended and nothing waits in the queue, there is nothing more to come.
            while any(thread.is_alive() for thread in threads) or not results.empty():
                try:
                    result = results.get(timeout=0.2)
                except queue.Empty:
                    continue
                if not isinstance(result, _Failure):
                    yield result
                elif self._goes_on(result):
                    start(result.worker)
        finally:
            ledger.close()
        assert ledger.complete, "the threads ended before the shards were done"

    def _goes_on(self, failure: _Failure) -> bool:
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


def _work(
    worker: str,
    shards: str,
    ledger: Ledger,
    call: Call[Result],
    results: "queue.Queue[tuple[Task, Result] | _Failure]",
) -> None:
    """One worker's thread: ends when the ledger has no more, or at the first error."""
    while (task := ledger.take()) is not None:
        try:
            with tf.device(worker):
                result = call(task, storage.join(shards, task.shard.file))
        except Exception as error:
            ledger.give_back(task)
            results.put(_Failure(worker, error))
            return
        results.put((task, result))
        ledger.done(task)
