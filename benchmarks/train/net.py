"""The benchmark's net for ours, as a user writes a model: all inputs side by side, hidden layers, one logit."""

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models.layers import flat, mlp


class Deep(tf_keras.Model):
    def __init__(self, spec: FeatureSpec, config: TrainConfig):
        super().__init__()
        self.spec, self.deep = spec, mlp(config)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        return self.deep(flat(self.spec, inputs), training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    return Deep(spec, config)
