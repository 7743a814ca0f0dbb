"""Wide & Deep (Cheng et al., 2016, https://arxiv.org/abs/1606.07792): a linear model beside a deep one, trained together."""

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models.layers import FirstOrder, flat, mlp


class WideDeep(tf_keras.Model):
    linear_weights = True

    def __init__(self, spec: FeatureSpec, config: TrainConfig):
        super().__init__()
        self.spec = spec
        self.wide = FirstOrder(spec)
        self.deep = mlp(config)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        return self.wide(inputs) + self.deep(flat(self.spec, inputs), training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    return WideDeep(spec, config)
