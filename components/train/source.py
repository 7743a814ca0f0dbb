"""Where a worker reads its shards: in place from a file system, from copies that its agent fetches from an object store."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paraserve.components import storage
from paraserve.components.train.cluster.agent import Agent, Wanted
from paraserve.components.train.ledger import Task


class Source(Protocol):
    """Where one worker reads its shards; for one thread."""

    fetches_ahead: bool

    def path(self, task: Task) -> str:
        """The path at which the worker's TensorFlow reads the task's shard; waits for it. Raises what `Agent.fetch` raises."""
        ...

    def fetch_ahead(self, task: Task, running: Task) -> None:
        """Begins to fetch a shard while the worker runs another, and returns at once."""
        ...


@contextlib.contextmanager
def open_source(shards: str, agent: str, disk_bytes: int) -> Iterator[Source]:
    """The source of the worker with the agent at address `agent`, for the packed data set at `shards`."""
    if storage.is_path(shards):
        yield _Places(shards)
        return
    with contextlib.closing(Agent(agent)) as fetcher:
        yield _Copies(shards, fetcher, disk_bytes)


def check_fits(shards: str, tasks: Sequence[Task], disk_bytes: int) -> None:
    """Raises ValueError for a shard that has to be fetched and is larger than `disk_bytes`."""
    too_large = [task.shard for task in tasks if task.shard.bytes > disk_bytes]
    if too_large and not storage.is_path(shards):
        raise ValueError(
            f"the shard {storage.join(shards, too_large[0].file)} has {too_large[0].bytes} bytes, more than the {disk_bytes} "
            "that copies of shards may take on a worker; ingest with smaller `shard_rows`"
        )


@dataclass
class _Places:
    shards: str
    fetches_ahead = False

    def path(self, task: Task) -> str:
        return storage.join(self.shards, task.shard.file)

    def fetch_ahead(self, task: Task, running: Task) -> None:
        raise AssertionError("what is read in place is not fetched")


@dataclass
class _Copies:
    shards: str
    agent: Agent
    disk_bytes: int
    fetches_ahead = True
    _running: str = ""
    """Path of the shard that was asked for last."""
    _ahead: dict[str, Callable[[], str]] = field(default_factory=dict)
    """What was begun, by the shard's file."""

    def path(self, task: Task) -> str:
        ahead = self._ahead.pop(task.shard.file, None)
        self._ahead.clear()  # what another worker has taken; its copy makes room like any other
        self._running = (ahead or self._fetch(task, keep=""))()
        return self._running

    def fetch_ahead(self, task: Task, running: Task) -> None:
        if running.shard.bytes + task.shard.bytes <= self.disk_bytes:
            self._ahead[task.shard.file] = self._fetch(task, keep=self._running)

    def _fetch(self, task: Task, keep: str) -> Callable[[], str]:
        shard = task.shard
        place = storage.join(self.shards, shard.file)
        wanted = Wanted(place=place, bytes=shard.bytes, sha256=shard.sha256, disk_bytes=self.disk_bytes, keep=keep)
        return self.agent.fetch(wanted)
