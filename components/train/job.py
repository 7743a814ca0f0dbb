"""The train step from start to end: connect, train epoch by epoch, keep the best, export."""

import contextlib
import dataclasses
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paraserve.components import run_folder, storage
from paraserve.components.manifest import Manifest, read_manifest, read_raw_sample
from paraserve.components.records import read_shard
from paraserve.components.train import curves, export, export_report, snapshot
from paraserve.components.train.barrier import Barrier
from paraserve.components.train.cluster import PARAMETER_SERVER, WORKER, Cluster
from paraserve.components.train.cluster.local import LocalCluster
from paraserve.components.train.config import TrainConfig, check_model_fits, check_schedule_lasts
from paraserve.components.train.exchanged import Exchanged
from paraserve.components.train.export import Exported
from paraserve.components.train.export_check import largest_difference
from paraserve.components.train.export_report import ExportReport
from paraserve.components.train.ledger import Ledger, Task, steps_of
from paraserve.components.train.loop import Workers
from paraserve.components.train.models import model_builder
from paraserve.components.train.snapshot import Snapshot
from paraserve.components.train.telemetry import Telemetry
from paraserve.components.train.trainer import ShardResult, Trainer

MAX_EXPORT_DIFFERENCE = 1e-5
"""The exported model may differ from the trainer by the rounding of float32 sums, and no more."""
EVICTION_SHARDS = 16
"""Shards from one look at the tables, for keys to evict, to the next: each makes all workers wait for the slowest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What came of a training."""

    snapshot: str
    """Place of the best epoch's snapshot."""
    best_epoch: int
    epochs: int
    """Epochs trained, earlier attempts of the run included."""
    examples: int
    """Examples trained by this process, those of repeated shards once."""
    examples_repeated: int
    """Examples of shards that were handed out again after a loss."""
    workers_lost: int
    figures: dict[str, float]
    """The best epoch's loss, auc, eval_loss, eval_auc."""
    exchanged: dict[str, float]
    """What workers and servers exchanged in this process: staleness, refusals, hit rate, bytes (`Exchanged.figures`)."""
    evicted: dict[str, int]
    """Keys of each dynamic table that lost their row."""
    export_rows: int
    """Raw eval rows that the exported model was asked, to compare its answers with the trainer's."""
    export_difference: float
    """Largest difference between the two; 0 where there was no row to ask."""
    export: ExportReport
    """What the export holds, and what it costs."""


def train(config: TrainConfig, model: Path, logs: Path) -> TrainResult:
    """Trains as `config` says, and writes the SavedModel to the folder `model` and TensorBoard logs to the folder `logs`.

    Run again with the same run id, it goes on after the last whole epoch. Raises ValueError for settings that do not fit the
    data, FloatingPointError for a loss that is not finite, RuntimeError when too many servers are lost.
    """
    manifest = read_manifest(config.shards)
    if not manifest.splits["train"].rows or not manifest.splits["eval"].rows:
        raise ValueError(f"the data set at {config.shards} has an empty train or eval split; ingest more data")
    model_builder(config.model)  # fails here, before a server starts, where there is no such model
    check_model_fits(config.model, manifest.spec)
    planned = steps_of(manifest.splits["train"].shards, config.batch_size) * config.epochs
    check_schedule_lasts(config, planned)
    folder = storage.join(config.snapshots, run_folder.run_id())
    start = _start(config, manifest, folder)
    with _cluster(config) as cluster, _connected(cluster):
        return _Run(config, manifest, cluster, folder).complete(start, model, logs)


def _start(config: TrainConfig, manifest: Manifest, folder: str) -> Snapshot | None:
    """The snapshot to begin with: this run's own newest, else the one the config names, else none."""
    found = snapshot.newest(folder)
    if found is None and config.resume_from:
        found = snapshot.read_manifest(config.resume_from)
        if found.data_digest != manifest.data_digest:
            # Weights to begin with; the new data's epochs are all to do.
            found = dataclasses.replace(found, epoch=0, history=(), done=())
        found = dataclasses.replace(found, finished=False)
    if found is not None:
        snapshot.check_fits(found, config.settings(), manifest.spec.digest)
        further = f" and {len(found.done)} shards" if found.done else ""
        print(f"resuming from {found.place}, {found.epoch} epochs{further} done", flush=True)
    return found


@contextlib.contextmanager
def _cluster(config: TrainConfig) -> Iterator[LocalCluster]:
    cluster = LocalCluster(config.workers, config.parameter_servers)
    try:
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def _connected(cluster: Cluster) -> Iterator[tf.distribute.Strategy]:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster.cluster_spec(), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)  # kept: the connection ends with it
    try:
        yield strategy
    finally:
        del strategy
        # Functions and variables are let go of while their servers still live: later, each would fail to say goodbye.
        gc.collect()


class _Run:
    """One training on a connected cluster."""

    def __init__(self, config: TrainConfig, manifest: Manifest, cluster: Cluster, folder: str):
        spec = cluster.cluster_spec()
        self.config, self.manifest, self.folder = config, manifest, folder
        self.train_split, self.eval_split = manifest.splits["train"], manifest.splits["eval"]
        self.steps_per_epoch = steps_of(self.train_split.shards, config.batch_size)
        planned = self.steps_per_epoch * config.epochs
        self.trainer = Trainer(config, manifest, spec.num_tasks(PARAMETER_SERVER), planned)
        self.workers = Workers(cluster, spec.num_tasks(WORKER), config.shards)
        self.exchanged = self.trainer.exchanges()
        self.evicted = dict.fromkeys((table.name for table in manifest.spec.tables.values() if table.dynamic), 0)
        self.examples = self.repeated = 0

    def complete(self, start: Snapshot | None, model: Path, logs: Path) -> TrainResult:
        """Trains from `start` to the end, and exports the best epoch."""
        export.check_budget(self.trainer)
        workers = len(self.workers.alive)
        last = start
        if start is not None:
            snapshot.restore(start, self.trainer)
        with Telemetry(logs, self.config.settings(), self._rows_left(start)) as telemetry:
            while last is None or not (last.finished or last.epoch >= self.config.epochs):
                last = self._epoch(last, telemetry)
        best = self._best(last)
        if best.epoch != last.epoch:
            # Tables that keep keys from after the best epoch would not be its tables.
            self.trainer.forget()
            snapshot.restore(best, self.trainer)
        figures = {k: v for k, v in best.history[best.epoch - 1].items() if k != "snapshot"}
        exported = export.export(self.trainer, model, run_folder.run_id())
        rows, difference = self._check_export(exported)
        return TrainResult(
            snapshot=best.place,
            best_epoch=best.epoch,
            epochs=last.epoch,
            examples=self.examples,
            examples_repeated=self.repeated,
            workers_lost=workers - len(self.workers.alive),
            figures=figures,
            exchanged=self.exchanged.figures(),
            evicted=self.evicted,
            export_rows=rows,
            export_difference=difference,
            export=export_report.report(exported, self.trainer, figures["eval_auc"]),
        )

    def _rows_left(self, start: Snapshot | None) -> int:
        done = self.config.epochs if start and start.finished else start.epoch if start else 0
        return self.train_split.rows * max(self.config.epochs - done, 0)

    def _epoch(self, last: Snapshot | None, telemetry: Telemetry) -> Snapshot:
        """Trains one epoch, or what is left of it, evaluates, and takes a snapshot."""
        epoch = last.epoch if last else 0
        loss, auc, exchanged = self._pass(last, telemetry)
        eval_loss, eval_auc = self._evaluate()
        figures = {"loss": loss, "auc": auc, "eval_loss": eval_loss, "eval_auc": eval_auc}
        place = snapshot.epoch_place(self.folder, epoch + 1)
        history = (*(last.history if last else ()), {**figures, "snapshot": place})
        telemetry.epoch(epoch + 1, (epoch + 1) * self.steps_per_epoch, figures, exchanged, self.trainer)
        finished = epoch + 1 >= self.config.epochs or self._out_of_patience(history)
        taken = self._take_snapshot(place, epoch + 1, history, finished, done=())
        self._forget_old(taken)
        return taken

    def _take_snapshot(
        self, place: str, epoch: int, history: tuple[Any, ...], finished: bool, done: tuple[str, ...]
    ) -> Snapshot:
        taken = Snapshot(
            place=place,
            epoch=epoch,
            settings=self.config.settings(),
            spec_digest=self.manifest.spec.digest,
            data_digest=self.manifest.data_digest,
            history=history,
            finished=finished,
            done=done,
            files={},
        )
        return snapshot.write(taken, self.trainer)

    def _pass(self, last: Snapshot | None, telemetry: Telemetry) -> tuple[float, float, Exchanged]:
        """Trains on every shard that the epoch has left; mean log loss and AUC of their batches, each judged before the update
        that it led to, and their exchanges."""
        epoch, done = (last.epoch, set(last.done)) if last else (0, set())
        ledger = Ledger.of_epoch(self.train_split.shards, epoch, self.config.seed, self.config.batch_size, done)
        total, exchanged = _Sum(), self.trainer.exchanges()
        barriers = self._barriers(last, done, epoch)
        for task, result in self.workers.run(ledger, self._train_task, barriers):
            total.add(result)
            exchanged.add(result.exchanged)
            self.exchanged.add(result.exchanged)
            done.add(task.shard.file)
            rate = self.trainer.rate_at(task.first_step)
            telemetry.shard(task.first_step, result.examples, result.loss / result.examples, rate)
        self.examples += ledger.rows_done
        self.repeated += ledger.rows_repeated
        self._evict((epoch + 1) * self.steps_per_epoch)
        return (*total.figures(), exchanged)

    def _train_task(self, task: Task, path: str) -> ShardResult:
        return self.trainer.train_shard(path, task.first_step)

    def _barriers(self, last: Snapshot | None, done: set[str], epoch: int) -> list[Barrier]:
        """What is done within an epoch while no worker runs."""

        def take_snapshot() -> None:
            place = snapshot.partial_place(self.folder, epoch, len(done))
            taken = self._take_snapshot(place, epoch, last.history if last else (), finished=False, done=tuple(sorted(done)))
            self._forget_old(taken)

        barriers = []
        if any(table.evict != "none" for table in self.manifest.spec.tables.values()):
            step = epoch * self.steps_per_epoch
            barriers.append(Barrier(action=lambda: self._evict(step + self._steps_of(done)), every_shards=EVICTION_SHARDS))
        if self.config.snapshot_shards or self.config.snapshot_seconds:
            shards, seconds = self.config.snapshot_shards, self.config.snapshot_seconds
            barriers.append(Barrier(action=take_snapshot, every_shards=shards, every_seconds=seconds))
        return barriers

    def _steps_of(self, files: set[str]) -> int:
        return steps_of([shard for shard in self.train_split.shards if shard.file in files], self.config.batch_size)

    def _evict(self, step: int) -> None:
        for table, count in self.trainer.evict(step).items():
            if count:
                self.evicted[table] += count

    def _evaluate(self) -> tuple[float, float]:
        """Log loss and AUC of the eval split, by the workers."""
        ledger = Ledger.of_epoch(self.eval_split.shards, 0, self.config.seed, self.config.batch_size)
        total = _Sum()
        for _, result in self.workers.run(ledger, lambda t, path: self.trainer.evaluate_shard(path)):
            total.add(result)
        return total.figures()

    def _out_of_patience(self, history: tuple[Any, ...]) -> bool:
        losses = [figures["eval_loss"] for figures in history]
        since_best = len(losses) - 1 - losses.index(min(losses))
        return bool(self.config.patience) and since_best >= self.config.patience

    def _best(self, last: Snapshot) -> Snapshot:
        if last.best_epoch == last.epoch:
            return last
        return snapshot.read_manifest(last.history[last.best_epoch - 1]["snapshot"])

    def _forget_old(self, last: Snapshot) -> None:
        """Keeps the newest snapshot and the best epoch's."""
        kept = {last.place, *([snapshot.epoch_place(self.folder, last.best_epoch)] if last.history else [])}
        for name in storage.list_names(self.folder):
            if (place := storage.join(self.folder, name)) not in kept:
                storage.remove_folder(place)

    def _check_export(self, exported: Exported) -> tuple[int, float]:
        """Asks the exported model about raw values, and a worker about the same rows packed; raises where they disagree.

        Returns the number of rows, and the largest difference.
        """
        first = self.eval_split.shards[0]
        rows = read_raw_sample(self.config.shards, self.manifest)[: first.rows]
        if not rows:
            print("no raw sample was taken at ingest: the exported model was not compared with the trainer", flush=True)
            return 0, 0.0
        ledger = Ledger.of_epoch([first], 0, self.config.seed, self.config.batch_size)
        ((_, predicted),) = self.workers.run(ledger, lambda t, path: self.trainer.predict_shard(path))
        with storage.local_file(storage.join(self.config.shards, first.file)) as path:
            packed = read_shard(path, self.manifest.layout).rows(0, len(rows))
        difference = largest_difference(exported, self.trainer, rows, packed, predicted[: len(rows)])
        if not difference <= MAX_EXPORT_DIFFERENCE:
            raise RuntimeError(
                f"the exported model answers raw values differently from the trainer, by up to {difference} over {len(rows)} "
                "rows: hashing or transforms differ between ingest and the served graph; please report it"
            )
        return len(rows), difference


class _Sum:
    """Adds up shards' results."""

    def __init__(self) -> None:
        self.loss, self.examples = 0.0, 0
        self.counts = np.zeros([2, curves.BINS], np.int64)

    def add(self, result: ShardResult) -> None:
        self.loss += result.loss
        self.examples += result.examples
        self.counts += result.counts

    def figures(self) -> tuple[float, float]:
        loss = self.loss / self.examples
        assert math.isfinite(loss), "a shard with a loss that is not finite was let through"
        return loss, curves.auc(self.counts)
