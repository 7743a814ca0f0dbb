"""Peer: tf_keras `fit` under ParameterServerStrategy, as TensorFlow's tutorial shows it
(https://www.tensorflow.org/tutorials/distribute/parameter_server_training).
"""

from pathlib import Path

import tensorflow as tf
import tf_keras

from benchmarks.train import keras_net
from benchmarks.train.cluster import BenchCluster, connect
from benchmarks.train.meter import Figures, Meter
from benchmarks.train.network import Network
from benchmarks.train.workload import Workload
from paraserve.components.manifest import read_manifest
from paraserve.components.train.cluster import tf_config

STEPS_PER_EXECUTION = 10
"""The tutorial's."""


def _serve(_: Path) -> None:
    """A server as the tutorial starts it."""
    task = tf_config.from_environment()
    cluster = tf.train.ClusterSpec(task.cluster)
    tf.distribute.Server(cluster, job_name=task.job, task_index=task.index, protocol="grpc").join()


def run(workload: Workload, network: Network) -> Figures:
    manifest = read_manifest(str(workload.shards))
    cluster = BenchCluster(network, workload.workers, workload.parameter_servers, _serve)
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(workload.parameter_servers)
    with connect(cluster, partitioner).scope():
        model = keras_net.build(workload)
        model.compile(
            tf_keras.optimizers.legacy.Adagrad(workload.learning_rate),
            tf_keras.losses.BinaryCrossentropy(from_logits=True),
            steps_per_execution=STEPS_PER_EXECUTION,
        )

    def on_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return keras_net.batches(workload, manifest, context.input_pipeline_id, context.num_input_pipelines)

    def work() -> None:
        creator = tf_keras.utils.experimental.DatasetCreator(on_worker)
        model.fit(creator, epochs=1, steps_per_epoch=10**6, verbose=0)

    def progress() -> int:
        return int(model.optimizer.iterations.numpy()) * workload.batch_size

    meter = Meter(roles=cluster.roles, interface=network.interface)
    figures = meter.measure(work, progress, workload.warm_examples, workload.seconds)
    cluster.stop()
    return figures
