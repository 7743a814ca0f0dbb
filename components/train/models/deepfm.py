"""DeepFM (Guo et al., 2017, https://arxiv.org/abs/1703.04247): a factorisation machine and a deep part over the same
embeddings.
"""

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models.layers import FirstOrder, embeddings, flat, mlp


class DeepFM(tf_keras.Model):
    linear_weights = True

    def __init__(self, spec: FeatureSpec, config: TrainConfig):
        super().__init__()
        self.spec = spec
        self.first_order = FirstOrder(spec)
        self.deep = mlp(config)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        fields = tf.stack(embeddings(self.spec, inputs), axis=1)
        # Rendle, 2010: all pairwise products in linear time, as half of (sum squared - squares summed).
        pairs = tf.square(tf.reduce_sum(fields, axis=1)) - tf.reduce_sum(tf.square(fields), axis=1)
        second_order = 0.5 * tf.reduce_sum(pairs, axis=1, keepdims=True)
        return self.first_order(inputs) + second_order + self.deep(flat(self.spec, inputs), training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    return DeepFM(spec, config)
