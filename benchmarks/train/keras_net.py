"""The net for the tf_keras peers: one Embedding layer over all columns, hidden layers, one logit."""

import tensorflow as tf
import tf_keras

from benchmarks.train.workload import Workload
from paraserve.components.manifest import Manifest
from paraserve.components.records import read_shard_graph


def build(workload: Workload) -> tf_keras.Model:
    """A model of (int32 [n, columns], rows of the one table; float32 [n, dense columns]), not yet compiled."""
    log = workload.log
    ids = tf_keras.Input([log.columns], dtype=tf.int32)
    dense = tf_keras.Input([log.dense])
    initializer = tf_keras.initializers.RandomNormal(stddev=workload.embedding_init)
    rows = tf_keras.layers.Embedding(workload.rows, workload.dimension, embeddings_initializer=initializer)(ids)
    hidden = tf_keras.layers.Concatenate()([dense, tf_keras.layers.Reshape([log.columns * workload.dimension])(rows)])
    for width in workload.hidden:
        hidden = tf_keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal")(hidden)
    return tf_keras.Model([ids, dense], tf_keras.layers.Dense(1)(hidden))


def batches(workload: Workload, manifest: Manifest, part: int = 0, parts: int = 1) -> tf.data.Dataset:
    """Every `parts`-th of the peers' shards, read once, then served from memory again and again in batches."""
    shards = manifest.splits["train"].shards[: workload.peer_shards][part::parts]
    offsets = tf.range(workload.log.columns, dtype=tf.int64) * workload.log.values

    def read(place: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        shard = read_shard_graph(place, manifest.layout)
        rows = tf.cast(tf.math.floormod(shard["ids"], workload.log.values) + offsets, tf.int32)
        return (rows, shard["dense"]), shard["labels"][:, None]

    files = tf.data.Dataset.from_tensor_slices([str(workload.shards / shard.file) for shard in shards])
    examples = files.map(read).rebatch(workload.batch_size, drop_remainder=True)
    return examples.cache().repeat().prefetch(tf.data.AUTOTUNE)
