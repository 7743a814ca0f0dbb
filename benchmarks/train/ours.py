"""Ours: the train step's own trainer and workers, on the benchmark's net. All that knows the engine is in this file."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.train.cluster import BenchCluster, connect
from benchmarks.train.data import PRESENT
from benchmarks.train.meter import Figures, Meter
from benchmarks.train.network import Network
from benchmarks.train.workload import Workload
from paraserve.components.manifest import Shard, read_manifest
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.ledger import Ledger, Task, steps_of
from paraserve.components.train.loop import Workers
from paraserve.components.train.server import serve
from paraserve.components.train.trainer import Trainer

PASSES = 1000
"""Over the train split: more than any measurement lasts."""


def changes(workload: Workload, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the shipped defaults: what the workload says, and `settings`, which a row of the table names."""
    return {
        "model": "benchmarks.train.net:build",
        "hidden_units": ",".join(map(str, workload.hidden)),
        "batch_size": workload.batch_size,
        "learning_rate": workload.learning_rate,
        "embedding_init": workload.embedding_init,
        "workers": workload.workers,
        "parameter_servers": workload.parameter_servers,
        **settings,
    }


def run(workload: Workload, network: Network, settings: Mapping[str, Any]) -> Figures:
    """Trains without end and measures the steady state; no evaluation, no snapshot."""
    wanted = TrainConfig(shards=str(workload.shards), snapshots="", **changes(workload, settings))
    manifest = read_manifest(wanted.shards)
    cluster = BenchCluster(network, workload.workers, workload.parameter_servers, serve)
    shards = manifest.splits["train"].shards * PASSES
    _strategy = connect(cluster)  # kept: the connection ends with it
    trainer = Trainer(wanted, manifest, workload.parameter_servers, planned_steps=steps_of(shards, wanted.batch_size))
    workers = Workers(cluster, workload.workers, wanted.shards)
    ledger = Ledger.of_epoch(shards, 0, wanted.seed, wanted.batch_size)
    present = [Shard(file=path.name, rows=0, bytes=0, sha256="") for path in workload.shards.glob(PRESENT)]

    def train(task: Task, place: str) -> int:
        return trainer.train_shard(place, task.first_step).examples

    examples = 0

    def work() -> None:
        nonlocal examples
        for _ in workers.run(Ledger.of_epoch(present, 0, wanted.seed, wanted.batch_size), train):
            pass
        for _, trained in workers.run(ledger, train):
            examples += trained

    meter = Meter(roles=cluster.roles, interface=network.interface)
    figures = meter.measure(work, lambda: examples, workload.warm_examples, workload.seconds)
    cluster.stop()
    return dataclasses.replace(figures, extras={"config": dataclasses.asdict(wanted)})
