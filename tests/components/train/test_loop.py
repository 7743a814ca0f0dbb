"""How shards come to workers: ahead, over a barrier, and past lost workers.

Where no TensorFlow server matters, the workers here are threads of this process, with real agents.
"""

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paraserve.components import storage
from paraserve.components.manifest import Shard, read_manifest
from paraserve.components.train import loop
from paraserve.components.train.barrier import Barrier
from paraserve.components.train.cluster import agent
from paraserve.components.train.ledger import Ledger, Task
from paraserve.components.train.loop import Workers

SIZE = 1000
"""Bytes of a shard."""


def wait_for(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@dataclass
class Threads:
    """A cluster whose workers are this process's threads."""

    addresses: list[str]
    gone: dict[str, str] = field(default_factory=dict)

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({"worker": self.addresses})

    def lost(self) -> dict[str, str]:
        return self.gone

    def stop(self) -> None:
        pass


def in_place(count: int) -> Workers:
    """Workers that read their shards in place, and so ask no agent."""
    return Workers(Threads([f"127.0.0.1:{9000 + i}" for i in range(count)]), count, "/packed")


def epoch(count: int) -> Ledger:
    return Ledger.of_epoch([Shard(file=f"{i}", rows=10, bytes=1, sha256="") for i in range(count)], 0, 0, 10)


class Calls:
    """Counts calls that run at the same time."""

    def __init__(self, seconds: float):
        self.seconds, self.running = seconds, 0
        self._lock = threading.Lock()

    def __call__(self, task: Task, path: str) -> str:
        with self._lock:
            self.running += 1
        time.sleep(self.seconds)
        with self._lock:
            self.running -= 1
        return path


def test_each_shard_is_called_once_with_its_path_and_step() -> None:
    ledger = epoch(7)

    results = {task.first_step: path for task, path in in_place(3).run(ledger, lambda task, path: path)}

    assert results == {task.first_step: f"/packed/{task.shard.file}" for task in ledger.tasks}
    assert (ledger.rows_done, ledger.rows_repeated) == (70, 0)


@pytest.mark.parametrize("often", [{"every_shards": 3}, {"every_seconds": 0.01}])
def test_at_a_barrier_nothing_runs_and_all_that_was_done_has_been_yielded(often: dict[str, Any]) -> None:
    ledger, calls = epoch(20), Calls(0.02)
    yielded: list[str] = []
    seen: list[tuple[int, int, int]] = []

    def act() -> None:
        before = ledger.rows_done
        time.sleep(0.05)  # long enough for a call that does not keep still
        seen.append((calls.running, before - len(yielded) * 10, ledger.rows_done - before))

    def call(task: Task, path: str) -> str:
        # On a busy machine the coordinator may lag behind.
        wait_for(lambda: ledger.rows_done - len(yielded) * 10 <= 20 or ledger._paused)
        return calls(task, path)

    for task, _ in in_place(3).run(ledger, call, [Barrier(action=act, **often)]):
        yielded.append(task.shard.file)

    assert sorted(yielded) == sorted(str(i) for i in range(20))
    assert seen == [(0, 0, 0)] * len(seen)
    assert 2 <= len(seen) <= 20 // often.get("every_shards", 1)


def test_a_barrier_that_serves_several_runs_counts_on_and_is_not_kept_for_the_end_of_one() -> None:
    acts: list[int] = []
    barrier = Barrier(action=lambda: acts.append(1), every_shards=3)
    workers, ledger = in_place(1), epoch(3)
    list(workers.run(epoch(2), lambda task, path: path, [barrier]))

    def call(task: Task, path: str) -> None:
        wait_for(lambda: task is ledger.tasks[0] or ledger._paused or acts)

    list(workers.run(ledger, call, [barrier]))
    assert len(acts) == 1, "after the first shard of the second run"

    for _ in range(2):
        list(workers.run(epoch(1), lambda task, path: path, [barrier]))
    assert len(acts) == 1, "at the end of a run nothing runs anyway"


def test_of_several_barriers_all_that_are_due_act_in_one_pause_and_the_others_do_not() -> None:
    ledger = epoch(6)
    acts: list[tuple[str, int]] = []
    barriers = [Barrier(action=lambda n=name: acts.append((n, ledger.rows_done)), every_shards=2) for name in "ab"]  # type: ignore[misc]
    never = Barrier(action=lambda: acts.append(("never", 0)))

    def call(task: Task, path: str) -> None:
        wait_for(lambda: task in ledger.tasks[:2] or acts or ledger._paused)

    list(in_place(1).run(ledger, call, [*barriers, never]))

    assert acts
    assert acts == [(name, rows) for _, rows in acts[::2] for name in "ab"]


def test_an_action_that_fails_ends_the_run() -> None:
    def act() -> None:
        raise OSError("no room for a snapshot")

    before = threading.active_count()
    with pytest.raises(OSError, match="no room for a snapshot"):
        list(in_place(3).run(epoch(9), Calls(0.01), [Barrier(action=act, every_shards=1)]))
    wait_for(lambda: threading.active_count() == before)


def this_worker() -> str:
    return threading.current_thread().name


def test_a_worker_lost_while_the_barrier_waits_for_it_does_not_hold_the_others_up() -> None:
    workers, ledger = in_place(2), epoch(6)
    slow = workers.alive[0]
    seen: list[tuple[int, list[str]]] = []

    def call(task: Task, path: str) -> str:
        if this_worker() == slow:
            wait_for(lambda: ledger._paused)
            workers.cluster.lost()[slow] = "killed"
            raise tf.errors.UnavailableError(None, None, "connection reset")
        wait_for(lambda: slow in ledger._running or slow not in workers.alive)
        return path

    barrier = Barrier(action=lambda: seen.append((len(ledger._running), list(workers.alive))), every_shards=1)
    results = [path for _, path in workers.run(ledger, call, [barrier])]

    assert sorted(results) == [f"/packed/{i}" for i in range(6)]
    assert (ledger.rows_done, ledger.rows_repeated) == (60, 10)
    assert seen == [(0, workers.alive)] * len(seen), "the loss was known when the barrier acted"
    assert seen


def test_a_worker_whose_call_fails_with_anothers_loss_goes_on() -> None:
    workers, ledger = in_place(2), epoch(6)
    lost, alive = workers.alive
    both = threading.Barrier(2)
    failed: set[str] = set()

    def call(task: Task, path: str) -> str:
        if this_worker() in failed:
            return path
        failed.add(this_worker())
        both.wait(timeout=10)
        workers.cluster.lost()[lost] = "killed"
        raise tf.errors.CancelledError(None, None, "step cancelled")

    results = [path for _, path in workers.run(ledger, call)]

    assert sorted(results) == [f"/packed/{i}" for i in range(6)]
    assert workers.alive == [alive]
    assert ledger.rows_repeated == 20


def test_a_run_that_is_left_early_ends_its_threads() -> None:
    before = threading.active_count()
    run = in_place(3).run(epoch(9), Calls(0.01))
    next(run)
    run.close()  # type: ignore[attr-defined]

    wait_for(lambda: threading.active_count() == before)


@dataclass
class Store:
    """A packed data set of small shards in a bucket, and workers with agents that copy them to `folders`."""

    place: str
    shards: list[Shard]
    workers: Workers
    folders: dict[str, Path]

    def ledger(self, count: int) -> Ledger:
        return Ledger.of_epoch(self.shards[:count], 0, 0, 10)

    def copies(self, worker: str) -> list[str]:
        """Files of whole copies on a worker."""
        return [p.name.partition("-")[2] for p in self.folders[worker].iterdir() if not p.name.startswith(".")]


@pytest.fixture
def store(bucket: str, tmp_path: Path) -> Iterator[Store]:
    shards = []
    for i in range(6):
        (tmp_path / "shard").write_bytes(bytes([i]) * SIZE)
        storage.write_bytes(f"{bucket}/packed/{i}.records", bytes([i]) * SIZE)
        digest = storage.sha256_of(tmp_path / "shard")
        shards.append(Shard(file=f"{i}.records", rows=10, bytes=SIZE, sha256=digest))
    with contextlib.ExitStack() as agents:
        addresses = _free_addresses(2)
        for i, address in enumerate(addresses):
            agents.enter_context(agent.serving(address, tmp_path / f"{i}"))
        workers = Workers(Threads(addresses), 2, f"{bucket}/packed")
        folders = {worker: tmp_path / f"{i}" for i, worker in enumerate(workers.alive)}
        yield Store(f"{bucket}/packed", shards, workers, folders)


def test_the_next_shard_comes_while_one_runs_and_to_the_worker_that_will_run_it(store: Store) -> None:
    (worker, _), ledger = store.workers.alive, store.ledger(4)
    store.workers.alive = [worker]
    ran: list[str] = []

    def call(task: Task, path: str) -> bytes:
        ran.append(task.shard.file)
        wait_for(lambda: len(store.copies(worker)) == min(len(ran) + 1, 4))
        assert Path(path).parent == store.folders[worker]
        return Path(path).read_bytes()

    results = {task.shard.file: content for task, content in store.workers.run(ledger, call)}

    assert results == {f"{i}.records": bytes([i]) * SIZE for i in range(4)}


def test_an_idle_worker_fetches_and_runs_what_a_busy_one_had_fetched_ahead(store: Store) -> None:
    slow, fast = store.workers.alive
    ran: dict[str, list[str]] = {slow: [], fast: []}

    def call(task: Task, path: str) -> None:
        assert Path(path).parent == store.folders[this_worker()]
        ran[this_worker()].append(task.shard.file)
        if this_worker() == slow:
            wait_for(lambda: len(ran[fast]) == 3)
        else:
            wait_for(lambda: len(store.copies(slow)) == 2)

    results = [task.shard.file for task, _ in store.workers.run(store.ledger(4), call)]

    assert len(results) == 4
    assert len(ran[slow]) == 1
    (ahead,) = set(store.copies(slow)) - set(ran[slow])
    assert ahead == ran[fast][-1]
    assert sorted(store.copies(fast)) == sorted(ran[fast])


def test_a_disk_with_room_for_one_shard_holds_one(store: Store) -> None:
    (worker, _), ledger = store.workers.alive, store.ledger(4)
    store.workers.alive, store.workers.disk_bytes = [worker], SIZE + 1

    def call(task: Task, path: str) -> list[str]:
        time.sleep(0.05)
        return store.copies(worker)

    assert all(copies == [task.shard.file] for task, copies in store.workers.run(ledger, call))
    assert ledger.complete


def test_a_shard_larger_than_the_disk_is_refused_before_any_work(store: Store) -> None:
    store.workers.disk_bytes = SIZE - 1

    with pytest.raises(ValueError, match=r"shard gs://.*records has 1000 bytes, more than the 999 .*smaller `shard_rows`"):
        next(store.workers.run(store.ledger(4), lambda task, path: path))


def test_a_shard_that_is_gone_or_damaged_fails_the_run_by_name_and_no_worker_is_taken_for_lost(store: Store) -> None:
    storage.write_bytes(f"{store.place}/3.records", b"damaged")
    started = time.monotonic()
    with pytest.raises(ValueError, match=f"cannot fetch {store.place}/3.records: .*manifest says 1000 bytes"):
        list(store.workers.run(store.ledger(6), lambda task, path: path))
    storage.remove_folder(store.place)
    with pytest.raises(FileNotFoundError, match=f"there is no object {store.place}/5.records"):
        list(store.workers.run(Ledger.of_epoch([store.shards[5]], 0, 0, 10), lambda task, path: path))

    assert len(store.workers.alive) == 2
    assert time.monotonic() - started < loop.NOTICE_SECONDS


def test_a_worker_that_is_lost_before_its_shard_came_has_repeated_nothing(store: Store) -> None:
    lost, alive = store.workers.alive
    store.workers.cluster.lost()[lost] = "killed"
    store.workers._agents[lost] = agent.address_of(*_free_addresses(1))  # where nobody listens
    ledger = store.ledger(6)

    def call(task: Task, path: str) -> str:
        wait_for(lambda: store.workers.alive == [alive])
        return this_worker()

    assert [worker for _, worker in store.workers.run(ledger, call)] == [alive] * 6
    assert (ledger.rows_done, ledger.rows_repeated) == (60, 0)


def test_an_agent_that_does_not_answer_fails_the_run_where_its_worker_is_not_lost(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "NOTICE_SECONDS", 0.1)
    workers = Workers(Threads(_free_addresses(1)), 1, bucket)

    with pytest.raises(ConnectionError, match=r"agent at 127.0.0.1:\d+ does not answer"):
        list(workers.run(epoch(1), lambda task, path: path))


def _free_addresses(count: int) -> list[str]:
    from paraserve.components.train.cluster.local import _free_addresses

    return _free_addresses(count)


@pytest.mark.slow
def test_a_worker_killed_with_a_shard_fetched_ahead_costs_no_shard(training: Any, bucket: str) -> None:
    storage.upload_folder(training.packed, f"{bucket}/packed", "manifest.json")

    training.call(_kill_with_a_shard_ahead, f"{bucket}/packed", os.environ["STORAGE_EMULATOR_HOST"], training.folder)

    assert list(training.folder.glob("paraserve*")) == []


def _kill_with_a_shard_ahead(place: str, emulator: str, folder: Path) -> None:
    from paraserve.components.train.cluster.local import LocalCluster

    os.environ["STORAGE_EMULATOR_HOST"], tempfile.tempdir = emulator, str(folder)
    shards = read_manifest(place).splits["train"].shards  # over a connection that no worker may inherit
    cluster = LocalCluster(workers=2, parameter_servers=1)
    try:
        workers, ledger = Workers(cluster, 2, place), Ledger.of_epoch(shards, 0, 0, 100)
        first, second = workers.alive
        pids = dict(cluster.pids)
        _connect(cluster)
        length = tf.function(lambda path: tf.strings.length(tf.io.read_file(path))).get_concrete_function(
            tf.TensorSpec([], tf.string)
        )
        ran: list[str] = []

        def call(task: Task, path: str) -> int:
            if this_worker() == first:
                wait_for(lambda: len(list(Path(path).parent.iterdir())) == 2)
                os.kill(pids[first], signal.SIGKILL)
            else:
                wait_for(lambda: first not in workers.alive)
            size = int(length(tf.constant(path)))
            ran.append(task.shard.file)
            return size

        results = {task.shard.file: size for task, size in workers.run(ledger, call)}

        assert results == {shard.file: shard.bytes for shard in shards}
        assert len(ran) == len(shards), "no shard was done twice"
        assert workers.alive == [second]
        assert (ledger.rows_done, ledger.rows_repeated) == (3000, 500)
    finally:
        cluster.stop()


def _connect(cluster: Any) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster.cluster_spec(), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)
