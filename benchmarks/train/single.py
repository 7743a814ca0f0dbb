"""Peer: tf_keras `fit` in one process."""

import os

import tf_keras

from benchmarks.train import keras_net
from benchmarks.train.meter import Figures, Meter
from benchmarks.train.network import Network
from benchmarks.train.workload import Workload
from paraserve.components.manifest import read_manifest

STEPS_PER_EXECUTION = 50


def run(workload: Workload, network: Network) -> Figures:
    model = keras_net.build(workload)
    model.compile(
        tf_keras.optimizers.legacy.Adagrad(workload.learning_rate),
        tf_keras.losses.BinaryCrossentropy(from_logits=True),
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    batches = keras_net.batches(workload, read_manifest(str(workload.shards)))

    def work() -> None:
        model.fit(batches, epochs=1, steps_per_epoch=10**6, verbose=0)

    def progress() -> int:
        return int(model.optimizer.iterations.numpy()) * workload.batch_size

    meter = Meter(roles={"coordinator": [os.getpid()]}, interface=network.interface)
    return meter.measure(work, progress, workload.warm_examples, workload.seconds)
