"""A trainer on real servers, for functions that run in a process of their own."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import tensorflow as tf

from paraserve.components.manifest import read_manifest
from paraserve.components.records import read_shard, write_shard
from paraserve.components.train.cluster import WORKER, device
from paraserve.components.train.cluster.local import LocalCluster
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding import state
from paraserve.components.train.embedding.table import Group
from paraserve.components.train.exchanged import Exchanged
from paraserve.components.train.job import _connected
from paraserve.components.train.ledger import steps_of
from paraserve.components.train.trainer import Trainer


def with_trainer(function: Callable[..., Any], settings: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
    """Calls `function` with a trainer, its cluster, and the paths of the data set's train shards."""
    config = TrainConfig(**settings)
    cluster = LocalCluster(config.workers, config.parameter_servers)
    try:
        with _connected(cluster):
            paths = sorted(map(str, Path(config.shards).glob("train-*.records")))
            return function(trainer_of(config), cluster, paths, *arguments)
    finally:
        cluster.stop()


def trainer_of(config: TrainConfig, **changes: Any) -> Trainer:
    """Another one on the servers that the process is connected to."""
    config = dataclasses.replace(config, **changes)
    manifest = read_manifest(config.shards)
    planned = steps_of(manifest.splits["train"].shards, config.batch_size) * config.epochs
    return Trainer(config, manifest, config.parameter_servers, planned)


def train(trainer: Trainer, paths: Sequence[str], worker: int = 0, exchanged: Exchanged | None = None) -> Exchanged:
    """Trains on shards, one after the other, on one worker; what it exchanged, added to `exchanged`."""
    exchanged, step = exchanged or trainer.exchanges(), 0
    for path in paths:
        with tf.device(device(WORKER, worker)):
            result = trainer.train_shard(path, step)
        exchanged.add(result.exchanged)
        step += int(result.exchanged["steps"])
    return exchanged


def apart(trainer: Trainer, path: str, target: Path) -> list[npt.NDArray[np.int64]]:
    """Writes a copy of a shard in which no two batches have a key in common, nor has another shard; the keys of each batch."""
    layout, size = trainer.manifest.layout, trainer.config.batch_size
    block = read_shard(Path(path), layout)
    mark = (1 + np.arange(len(block)) // size) << 40
    lists = tuple((lengths, values ^ np.repeat(mark, lengths)) for lengths, values in block.lists)
    copy = dataclasses.replace(block, ids=block.ids ^ mark[:, None], lists=lists)
    write_shard(target, copy, layout)
    batches = [copy.rows(start, start + size) for start in range(0, len(copy), size)]
    return [np.unique(np.concatenate([b.ids.ravel(), *(values for _, values in b.lists)])) for b in batches]


def beside_a_slow_worker(trainer: Trainer, cluster: LocalCluster, path: str, slow: str) -> tuple[Exchanged, Exchanged]:
    """Trains on the shard `slow` on worker 0, slowed tenfold, and meanwhile on the other again and again on worker 1."""
    for worker in range(2):
        train(trainer, [path], worker)  # first calls take longer
    with slowed(cluster, 0):
        call, fast = Call(lambda: train(trainer, [slow], 0)), trainer.exchanges()
        while call.running:
            train(trainer, [path], 1, fast)
    return call.result(), fast


def rows_by_key(group: Group) -> dict[str, dict[int, npt.NDArray[Any]]]:
    """What dynamic tables hold of each key, by name: weights, the optimizer's slots, frequency and so on."""
    pieces = [piece for piece in state.pieces(group) if not np.all(piece["keys"] == -1)]
    keys = np.concatenate([piece["keys"] for piece in pieces]).tolist()
    return {name: dict(zip(keys, np.concatenate([piece[name] for piece in pieces]), strict=True)) for name in pieces[0]}


class Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], Any]):
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = 30) -> None:
        """Waits until it has ended, well or not."""
        self._thread.join(seconds)
        assert not self.running, f"no answer within {seconds} s"

    def result(self, seconds: float = 30) -> Any:
        """Waits for it; raises what it raised."""
        self.join(seconds)
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self._result = function()
        except BaseException as error:
            self._error = error


def worker_process(cluster: LocalCluster, worker: int) -> psutil.Process:
    return psutil.Process(cluster.pids[device(WORKER, worker)])


@contextlib.contextmanager
def slowed(cluster: LocalCluster, worker: int, times: int = 10, slice_seconds: float = 0.005) -> Iterator[None]:
    """Lets a worker's process run only in one slice of time out of `times`."""
    process, over = worker_process(cluster, worker), threading.Event()

    def stop_and_go() -> None:
        while not over.is_set() and process.is_running():
            process.suspend()
            time.sleep((times - 1) * slice_seconds)
            process.resume()
            time.sleep(slice_seconds)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
