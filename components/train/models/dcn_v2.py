"""DCN-V2 (Wang et al., 2021, https://arxiv.org/abs/2008.13535), stacked: cross layers of full rank, then the deep part."""

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.models.layers import flat, mlp

CROSS_LAYERS = 3


class DCNv2(tf_keras.Model):
    def __init__(self, spec: FeatureSpec, config: TrainConfig):
        super().__init__()
        self.spec = spec
        width = len(spec.dense) + sum(column.dimension for column in spec.embedded)
        self.crosses = [tf_keras.layers.Dense(width) for _ in range(CROSS_LAYERS)]
        self.deep = mlp(config)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        start = flat(self.spec, inputs)
        crossed = start
        for cross in self.crosses:
            crossed = start * cross(crossed) + crossed
        return self.deep(crossed, training=training)


def build(spec: FeatureSpec, config: TrainConfig) -> tf_keras.Model:
    return DCNv2(spec, config)
