"""Ours: the train step's own trainer and workers, on the benchmark's net. All that knows the engine is in this file."""

import dataclasses
import tempfile
from collections.abc import Mapping
from typing import Any

import tf_keras

from benchmarks.train.cluster import BenchCluster, connect
from benchmarks.train.meter import Figures, Meter
from benchmarks.train.network import Network
from benchmarks.train.workload import Workload
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import read_manifest
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.ledger import Ledger, Task, steps_of
from paraserve.components.train.loop import Workers
from paraserve.components.train.models.layers import flat, mlp
from paraserve.components.train.server import serve
from paraserve.components.train.trainer import Trainer

PASSES = 1000
"""Over the train split: more than any measurement lasts."""


class Deep(tf_keras.Model):
    """Embeddings and dense values side by side, hidden layers, one logit."""

    def __init__(self, spec: FeatureSpec, config: TrainConfig):
        super().__init__()
        self.spec, self.deep = spec, mlp(config)

    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        return self.deep(flat(self.spec, inputs), training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    """The benchmark's net, as a user would write it."""
    return Deep(spec, config)


def config(workload: Workload, settings: Mapping[str, Any]) -> TrainConfig:
    """The shipped defaults, but for what the workload says and `settings`, which a row of the table names."""
    return TrainConfig(
        shards=str(workload.shards),
        snapshots=tempfile.gettempdir(),
        model=f"{__name__}:build",
        hidden_units=",".join(map(str, workload.hidden)),
        batch_size=workload.batch_size,
        learning_rate=workload.learning_rate,
        embedding_init=workload.embedding_init,
        workers=workload.workers,
        parameter_servers=workload.parameter_servers,
        **settings,
    )


def run(workload: Workload, network: Network, settings: Mapping[str, Any]) -> Figures:
    """Trains without end and measures the steady state; no evaluation, no snapshot."""
    wanted = config(workload, settings)
    manifest = read_manifest(wanted.shards)
    cluster = BenchCluster(network, workload.workers, workload.parameter_servers, serve)
    shards = manifest.splits["train"].shards * PASSES
    connect(cluster)
    trainer = Trainer(wanted, manifest, workload.parameter_servers, planned_steps=steps_of(shards, wanted.batch_size))
    workers = Workers(cluster, workload.workers, wanted.shards)
    ledger = Ledger.of_epoch(shards, 0, wanted.seed, wanted.batch_size)

    def train(task: Task, place: str) -> int:
        return trainer.train_shard(place, task.first_step).examples

    examples = 0

    def work() -> None:
        nonlocal examples
        for _, trained in workers.run(ledger, train):
            examples += trained

    meter = Meter(roles=cluster.roles, interface=network.interface)
    figures = meter.measure(work, lambda: examples, workload.warm_examples, workload.seconds)
    cluster.stop()
    return dataclasses.replace(figures, extras={"config": dataclasses.asdict(wanted)})
