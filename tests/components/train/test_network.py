"""A user's model as a function that workers run: whatever layers it has, or an error that says why not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from paraserve.components.manifest import read_manifest
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.layout import GroupValues
from paraserve.components.train.network import Computed, Network

EXAMPLES = 6


class Model(tf_keras.Model):
    """What `layers` make of user and item."""

    def __init__(self, layers: Sequence[tf_keras.layers.Layer]):
        super().__init__()
        self.sequence, self.out = list(layers), tf_keras.layers.Dense(1)

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        x = tf.concat([inputs["user"], inputs["item"], inputs["dense"]], axis=1)
        for layer in self.sequence:
            x = layer(x, training=training)
        return self.out(x)


def batch_normalised(spec: Any, config: Any) -> tf_keras.Model:
    return Model([tf_keras.layers.Dense(4), tf_keras.layers.BatchNormalization()])


def recurrent(spec: Any, config: Any) -> tf_keras.Model:
    pair = tf_keras.layers.Lambda(lambda x: tf.stack([x[:, :8], x[:, 8:16]], axis=1))
    return Model([pair, tf_keras.layers.GRU(3, return_sequences=True), tf_keras.layers.LSTM(3)])


class Dropped(tf_keras.Model):
    """The sum of what two layers leave of a user's row, so that each number's gradient says whether it was left."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = [tf_keras.layers.Dropout(0.5) for _ in range(2)]

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        left = [layer(inputs["user"], training=training) * 0.01 * 10.0**i for i, layer in enumerate(self.drop)]
        return tf.reduce_sum(tf.add_n(left), axis=1, keepdims=True)


def dropped(spec: Any, config: Any) -> tf_keras.Model:
    return Dropped()


FOREIGN = tf.Variable(tf.ones([8]), name="foreign")


def with_a_foreign_variable(spec: Any, config: Any) -> tf_keras.Model:
    return Model([tf_keras.layers.Lambda(lambda x: x[:, :8] * FOREIGN)])


def with_a_large_constant(spec: Any, config: Any) -> tf_keras.Model:
    table = tf.random.stateless_normal([8, 1000], [1, 2])
    return Model([tf_keras.layers.Lambda(lambda x: x[:, :8] @ table)])


class Counting(Model):
    def __init__(self) -> None:
        super().__init__([])
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False, name="calls")


def counting(spec: Any, config: Any) -> tf_keras.Model:
    return Counting()


def of_two_outputs(spec: Any, config: Any) -> tf_keras.Model:
    model = Model([])
    model.out = tf_keras.layers.Dense(2)
    return model


def of_the_wrong_width(spec: Any, config: Any) -> tf_keras.Model:
    return Model([tf_keras.layers.Lambda(lambda x: x @ tf.ones([5, 1]))])


def of_unknown_columns(spec: Any, config: Any) -> tf_keras.Model:
    class Priced(tf_keras.Model):
        def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
            return inputs["price"]

    return Priced()


def network(packed: Path, model: Callable[..., Any], **settings: Any) -> Network:
    name = f"{__name__}:{model.__name__}"
    return Network(TrainConfig(shards=str(packed), snapshots="", model=name, **settings), read_manifest(str(packed)))


def batch(network: Network, seed: int = 0) -> tuple[list[GroupValues], tf.Tensor, tf.Tensor]:
    """Rows of each place, dense numbers and labels."""
    rng = np.random.default_rng(seed)
    (layout,) = network.layouts
    values = [tf.constant(rng.standard_normal([len(layout.categorical), EXAMPLES, layout.width]), tf.float32)]
    values += [tf.zeros([0, layout.width]) for _ in layout.lists]
    segments = [tf.zeros([0], tf.int64) for _ in layout.lists]
    groups = [GroupValues(layout=layout, values=values, segments=segments, examples=tf.constant(EXAMPLES))]
    dense = tf.constant(rng.uniform(0, 100, [EXAMPLES, 1]), tf.float32)
    return groups, dense, tf.constant(rng.integers(0, 2, EXAMPLES), tf.float32)


def computed(network: Network, copies: int = 1, calls: int = 1) -> tuple[list[Computed], np.ndarray]:
    """What a worker computes of one batch, by copies of the network in a function called so often, and the state in the end."""
    groups, dense, labels = batch(network)

    @tf.function(autograph=False)
    def work(tensors: list[tf.Tensor], dense: tf.Tensor, labels: tf.Tensor) -> Any:
        weights = network.on_worker()
        weights.assign([network.weights.values()], network.state.values())
        groups = [GroupValues.of(network.layouts[0], iter(tensors))]
        results = [network.gradient(weights, groups, dense, labels, copy) for copy in range(copies)]
        return [(r.losses, r.logits, r.places, r.weights) for r in results], weights.state()

    called = [work(groups[0].tensors, dense, labels) for _ in range(calls)]
    results = [result for results, _ in called for result in results]
    named = [Computed(losses=r[0], logits=r[1], places=r[2], weights=r[3]) for r in results]
    return named, called[-1][1].numpy()


def by_keras(network: Network) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, np.ndarray]:
    """The same by a GradientTape over the model: the sum of losses, the mean's gradients of weights and rows; the state."""
    groups, dense, labels = batch(network)
    block = groups[0].values[0]
    with tf.GradientTape() as tape:
        tape.watch(block)
        logits = network._forward(groups, dense, training=True)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    weights, rows = tape.gradient(loss, [network.model.trainable_variables, block])
    return tf.reduce_sum(losses), weights, rows, network.state.values().numpy()


@pytest.mark.parametrize("model", [batch_normalised, recurrent])
def test_a_worker_computes_what_keras_does(packed: Path, model: Callable[..., Any]) -> None:
    net = network(packed, model)

    (result,), state = computed(net)

    losses, weights, rows, expected_state = by_keras(net)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
    for gradient, expected in zip(result.weights, weights, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-6)
    np.testing.assert_allclose(result.places[0][0], rows, atol=1e-6)
    np.testing.assert_allclose(state, expected_state, atol=1e-6)
    assert np.abs(rows).max() > 1e-3


def test_layers_and_batches_are_dropped_differently(packed: Path) -> None:
    """A number's gradient says which of two layers left it: one tenth of the other counts."""
    net = network(packed, dropped)

    results, _ = computed(net, copies=2, calls=2)

    scale = [tf.sigmoid(result.logits) - batch(net)[2] for result in results]
    left = [result.places[0][0][0] * 100 * EXAMPLES / s[:, None] for result, s in zip(results, scale, strict=True)]
    masks = [np.round(part.numpy()).astype(int) for part in left]
    for mask in masks:
        assert set(np.unique(mask)) == {0, 2, 20, 22}
    for i, mask in enumerate(masks):
        for other in masks[i + 1 :]:
            assert (mask != other).mean() > 0.4


def test_layers_computes_in_bfloat16_and_weights_stay_float32(packed: Path) -> None:
    exact, rough = (network(packed, batch_normalised, compute_dtype=dtype) for dtype in ("float32", "bfloat16"))

    (expected,), _ = computed(exact)
    (result,), _ = computed(rough)

    assert {tensor.dtype for tensor in [*result.weights, *result.places[0], result.logits]} == {tf.float32}
    np.testing.assert_array_equal(exact.weights.values(), rough.weights.values())
    difference = np.abs(result.logits - expected.logits).max()
    assert 0 < difference < 0.05
    local = rough.local_model(rough.weights.values(), rough.state.values())
    assert local.out.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_a_foreign_variable, "uses .*, which is none of its variables; make it a tf.Variable of a layer, or a constant"),
        (with_a_large_constant, "uses .*, which is none of its variables"),
        (counting, r"has the variable calls:0 of int64; servers keep float32 only"),
        (of_two_outputs, r"returns shape \(1, 2\) for one example; it must be \(1, 1\)"),
        (
            of_the_wrong_width,
            r"fails on \{'user': 8, 'item': 8, 'tags': 8, 'history': 8\} and 1 dense .* \[1,17\], In\[1\]: \[5,1\]",
        ),
        (of_unknown_columns, "fails on .* with KeyError: .*price.*; make it fit the spec's columns"),
    ],
)
def test_a_model_that_cannot_be_trained_is_named_with_the_reason(packed: Path, model: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)the model .*{message}"):
        network(packed, model)
