"""The network's weights, cut over two real servers."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

CUT = {"workers": 1, "parameter_servers": 2, "hidden_units": "512,256"}
"""Weights of 0.6 MB: enough for two parts."""


def test_gradients_and_changes_arrive_whole_or_their_largest_first(training: Any) -> None:
    training.with_trainer(_push, **CUT, optimizer="sgd")


def _push(by_sgd: Any, cluster: Any, paths: list[str]) -> None:
    import tensorflow as tf

    from tests.components.train.trainers import trainer_of

    rate, step, yes, no = tf.constant(0.5), tf.constant(0, tf.int64), tf.constant(True), tf.constant(False)
    dense, rng = by_sgd.dense, np.random.default_rng(0)
    assert len(dense.sizes) == 2

    def numbers() -> tf.Tensor:
        return tf.constant(rng.standard_normal(dense.size), tf.float32)

    (pulled,), _ = dense.pull(training=True, with_slots=True)
    np.testing.assert_array_equal(pulled, by_sgd.network.weights.values())

    # By SGD each number changes once, by what was sent of it, however it was sent.
    for way in ("whole", "largest first"):
        before, gradient = dense.arrays()["weights"], numbers()
        if way == "whole":
            dense.push(gradient, rate, step, yes)
        else:
            rest = dense.push_largest(gradient, rate, step, yes)
            check_largest(dense, gradient.numpy(), rest.numpy(), dense.arrays()["weights"] != before)
            dense.push(rest, rate, step, yes)
        expected = tf.constant(before) - rate * gradient
        np.testing.assert_array_equal(dense.arrays()["weights"], expected)
        # What is refused leaves no trace.
        dense.push(gradient, rate, step, no)
        dense.push_largest(gradient, rate, step, no)
        dense.add([gradient], no)
        dense.add_largest([gradient], no)
        np.testing.assert_array_equal(dense.arrays()["weights"], expected)

    # Changes of slots go with those of their weights.
    dense = trainer_of(by_sgd.config, optimizer="lazy_adam").dense
    before, changes = dense.arrays(), [numbers() for _ in range(3)]
    rest = dense.add_largest(changes, yes)
    for part, left in zip(changes, rest, strict=True):
        np.testing.assert_array_equal(left.numpy() == 0, rest[0].numpy() == 0)
        np.testing.assert_array_equal((part - left).numpy() != 0, rest[0].numpy() == 0)
    check_largest(dense, changes[0].numpy(), rest[0].numpy(), dense.arrays()["weights"] != before["weights"])
    dense.add(rest, yes)
    after = dense.arrays()
    for name, change in zip(("weights", "momentum", "velocity"), changes, strict=True):
        np.testing.assert_array_equal(after[name], before[name] + change.numpy())

    # 16 bits: pulled to the nearest, but exact where nothing is trained; of what is pushed the rounding error stays at home.
    dense = trainer_of(by_sgd.config, pull_dtype="bfloat16", push_dtype="bfloat16").dense
    before, gradient = dense.arrays()["weights"], numbers()
    (rough,), _ = dense.pull(training=True, with_slots=True)
    np.testing.assert_array_equal(rough, tf.cast(tf.cast(before, tf.bfloat16), tf.float32))
    (exact,), _ = dense.pull(training=False, with_slots=False)
    np.testing.assert_array_equal(exact, before)
    rest = dense.push_largest(gradient, rate, step, yes).numpy()
    sent = (before - dense.arrays()["weights"]) / 0.5
    np.testing.assert_allclose(sent + rest, gradient, atol=1e-5)
    assert np.count_nonzero((sent != 0) & (rest != 0)) > dense.size / 50


def check_largest(dense: Any, values: np.ndarray, rest: np.ndarray, changed: np.ndarray) -> None:
    """Of each server's part the share of largest numbers went, and nothing of the others."""
    np.testing.assert_array_equal(changed, rest == 0)
    np.testing.assert_array_equal(rest[~changed], values[~changed])
    cuts = np.cumsum(dense.sizes)[:-1]
    for part, went in zip(np.split(np.abs(values), cuts), np.split(changed, cuts), strict=True):
        assert went.sum() == dense.kept(len(part)) == len(part) // 32
        assert part[went].min() >= part[~went].max()


def test_state_and_bytes(training: Any) -> None:
    training.with_trainer(_state, **CUT, optimizer="adagrad", model="tests.components.train.test_network:batch_normalised")


def _state(trainer: Any, cluster: Any, paths: list[str]) -> None:
    import tensorflow as tf

    from tests.components.train.trainers import train, trainer_of

    dense = trainer.dense
    np.testing.assert_array_equal(dense.arrays()["state"], [0] * 4 + [1] * 4)
    dense.push_state(tf.ones([8]), tf.constant(False))
    dense.push_state(tf.ones([8]), tf.constant(True))
    np.testing.assert_array_equal(dense.arrays()["state"], [1] * 4 + [2] * 4)
    train(trainer, paths[:1])  # 500 rows of batches of 100, exchanges of 4
    after = dense.arrays()["state"]
    assert np.isfinite(after).all()
    assert (after != [1] * 4 + [2] * 4).all(), "moving means and variances are learned"

    size = dense.size
    assert (dense.bytes_pulled(True), dense.bytes_pulled(False)) == (4 * (2 * size + 8), 4 * (size + 8))
    kept = dense.kept(size)
    assert dense.bytes_pushed(True, compressed=True) == kept * (2 * 4 + 4) + 4 * 8
    halves = trainer_of(trainer.config, pull_dtype="bfloat16", push_dtype="bfloat16").dense
    assert (halves.bytes_pulled(False), halves.bytes_pushed(True, False)) == (2 * size + 32, 2 * 2 * size + 32)
