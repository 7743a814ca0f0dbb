"""Layers that several models share."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import TrainConfig


def mlp(config: TrainConfig) -> tf_keras.Sequential:
    """Dense layers of `config.hidden_widths` with ReLU and dropout, then one linear unit."""
    layers: list[tf_keras.layers.Layer] = []
    for width in config.hidden_widths:
        layers.append(tf_keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal"))
        if config.dropout:
            layers.append(tf_keras.layers.Dropout(config.dropout))
    return tf_keras.Sequential([*layers, tf_keras.layers.Dense(1)])


def embeddings(spec: FeatureSpec, inputs: dict[str, tf.Tensor]) -> Sequence[tf.Tensor]:
    """The embedded columns' inputs in the spec's order."""
    return [inputs[column.name] for column in spec.embedded]


def flat(spec: FeatureSpec, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Dense values and all embeddings side by side: float32 [examples, dense columns + sum of dimensions]."""
    return tf.concat([inputs["dense"], *embeddings(spec, inputs)], axis=1)


class FirstOrder(tf_keras.layers.Layer):
    """A linear model of the dense values plus one weight per categorical value: the "wide" part."""

    def __init__(self, spec: FeatureSpec):
        super().__init__()
        # oneDNN cannot multiply a matrix without columns, and takes the whole process down with it.
        self.dense = tf_keras.layers.Dense(1) if spec.dense else None

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        linear = tf.reduce_sum(inputs["linear"], axis=1, keepdims=True)
        return linear if self.dense is None else linear + self.dense(inputs["dense"])
