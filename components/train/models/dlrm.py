"""DLRM (Naumov et al., 2019, https://arxiv.org/abs/1906.00091): dot products between all embeddings and the projected dense
values, then a deep part.
"""

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models.layers import embeddings, mlp


class DLRM(tf_keras.Model):
    def __init__(self, spec: FeatureSpec, config: TrainConfig, dimension: int):
        super().__init__()
        self.spec = spec
        self.bottom = tf_keras.Sequential(
            [tf_keras.layers.Dense(4 * dimension, activation="relu"), tf_keras.layers.Dense(dimension, activation="relu")]
        )
        self.top = mlp(config)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        # Without dense columns there is nothing to project.
        projected = [self.bottom(inputs["dense"])] if self.spec.dense else []
        fields = tf.stack([*projected, *embeddings(self.spec, inputs)], axis=1)
        products = tf.matmul(fields, fields, transpose_b=True)
        count = len(self.spec.embedded) + len(projected)
        pairs = [i * count + j for i in range(count) for j in range(i)]
        interactions = tf.gather(tf.reshape(products, [-1, count * count]), pairs, axis=1)
        return self.top(tf.concat([*projected, interactions], axis=1), training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    return DLRM(spec, config, dimension=spec.embedded[0].dimension)
