"""The reference for quality: the same model trained in one process, one batch after the other, with tf_keras's own layers.

Nothing of the train step's engine is in it; the model classes and the transforms are the product's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras
from sklearn.metrics import log_loss, roc_auc_score

from paraserve.components.features import keys
from paraserve.components.features.graph import transform_dense
from paraserve.components.features.spec import CategoricalColumn, ListColumn
from paraserve.components.manifest import Manifest, read_manifest
from paraserve.components.records import Block, read_shard
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models import model_builder


class Reference(tf_keras.Model):
    """An Embedding layer for each table below the config's model. Called with ids, int64 [n, id_width], and dense values."""

    def __init__(self, manifest: Manifest, config: TrainConfig):
        super().__init__()
        self.spec, self.moments, self.config = manifest.spec, manifest.moments, config
        self.top = model_builder(config.model)(manifest.spec, config)
        self.linear = bool(getattr(self.top, "linear_weights", False))
        self.tables = {table.name: self._embedding(table.rows, table.dimension) for table in self.spec.tables.values()}
        self.weights_of = {name: self._linear(table.rows) for name, table in self.spec.tables.items() if self.linear}

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor], training: bool = False) -> tf.Tensor:
        ids, dense = inputs
        named: dict[str, tf.Tensor] = {"dense": transform_dense(self.spec, self.moments, dense)}
        linear = []
        for column in self.spec.embedded:
            values = ids[:, self.spec.id_slices[column.name]]
            named[column.name] = self._pooled(column, values, self.tables[column.table])
            if self.linear:
                linear.append(self._pooled(column, values, self.weights_of[column.table]))
        if self.linear:
            named["linear"] = tf.concat(linear, axis=1)
        return self.top(named, training=training)

    def _embedding(self, rows: int, dimension: int) -> tf_keras.layers.Layer:
        initializer = tf_keras.initializers.RandomNormal(stddev=self.config.embedding_init)
        return tf_keras.layers.Embedding(rows, dimension, embeddings_initializer=initializer)

    def _linear(self, rows: int) -> tf_keras.layers.Layer:
        return tf_keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")

    def _pooled(self, column: CategoricalColumn | ListColumn, values: tf.Tensor, table: tf_keras.layers.Layer) -> tf.Tensor:
        present = tf.cast(values != keys.PADDING, tf.float32)[:, :, None]
        rows = table(tf.math.floormod(values, self.spec.tables[column.table].rows)) * present
        self.add_loss(self.config.l2 * tf.reduce_sum(tf.square(rows)) / tf.cast(tf.shape(values)[0], tf.float32))
        total = tf.reduce_sum(rows, axis=1)
        if isinstance(column, ListColumn) and column.pooling == "mean":
            total /= tf.maximum(tf.reduce_sum(present, axis=1), 1.0)
        return total


def test_auc(shards: str, settings: Mapping[str, Any]) -> float:
    """Trains as the train step would with these settings, keeps the best epoch by eval log loss; AUC of the test split."""
    manifest, config = read_manifest(shards), TrainConfig(shards=shards, snapshots="", **settings)
    splits = {name: _split(shards, manifest, name) for name in ("train", "eval", "test")}
    tf_keras.utils.set_random_seed(config.seed)
    model = Reference(manifest, config)
    model.compile(
        tf_keras.optimizers.legacy.Adagrad(config.learning_rate), tf_keras.losses.BinaryCrossentropy(from_logits=True)
    )
    best = min(_epochs(model, config, splits), key=lambda epoch: epoch[0])
    return best[1]


def _epochs(model: tf_keras.Model, config: TrainConfig, splits: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """For each epoch the eval log loss and the test AUC, until patience ends."""
    losses: list[float] = []
    for _ in range(config.epochs):
        inputs, labels = splits["train"]
        model.fit(inputs, labels, config.batch_size, verbose=0)
        losses.append(float(log_loss(splits["eval"][1], _probabilities(model, splits["eval"][0]))))
        yield losses[-1], float(roc_auc_score(splits["test"][1], _probabilities(model, splits["test"][0])))
        if config.patience and len(losses) - 1 - losses.index(min(losses)) >= config.patience:
            return


def _probabilities(model: tf_keras.Model, inputs: Any) -> npt.NDArray[np.float64]:
    logits = model.predict(inputs, batch_size=8192, verbose=0)[:, 0].astype(np.float64)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return probabilities


def _split(shards: str, manifest: Manifest, name: str) -> tuple[tuple[Any, Any], npt.NDArray[np.float32]]:
    files = [Path(shards) / shard.file for shard in manifest.splits[name].shards]
    block = Block.concatenate([read_shard(path, manifest.layout) for path in files])
    return (block.id_matrix(manifest.layout), block.dense), block.labels
