"""Optimizers against plain NumPy, against tf_keras, and against each other's racing updates."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
import tf_keras

from paraserve.components.train import config
from paraserve.components.train.optimizers import FTRL_L1, Slotted, optimizer, slotted

Array = npt.NDArray[Any]
FIRST = tf.constant(0, tf.int64)


def sgd(w: Array, slots: list[Array], g: Array, lr: float, t: int) -> None:
    w -= lr * g


def adagrad(w: Array, slots: list[Array], g: Array, lr: float, t: int) -> None:
    slots[0] += g**2
    w -= lr * g / (np.sqrt(slots[0]) + 1e-7)


def rowwise_adagrad(w: Array, slots: list[Array], g: Array, lr: float, t: int) -> None:
    for row in range(len(w)):
        slots[0][row] += np.mean(g[row] ** 2)
        w[row] -= lr * g[row] / (np.sqrt(slots[0][row]) + 1e-8)


def lazy_adam(w: Array, slots: list[Array], g: Array, lr: float, t: int) -> None:
    m, v = slots
    m *= 0.9
    m += 0.1 * g
    v *= 0.999
    v += 0.001 * g**2
    w -= lr * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1)) * m / (np.sqrt(v) + 1e-7)


def ftrl(w: Array, slots: list[Array], g: Array, lr: float, t: int) -> None:
    n, z = slots
    sigma = np.sqrt(n + g**2) - np.sqrt(n)
    n += g**2
    z += lr * g - sigma * w
    w[...] = np.where(np.abs(z) <= lr * FTRL_L1, 0, (np.sign(z) * lr * FTRL_L1 - z) / np.sqrt(n))


REFERENCES: dict[str, Callable[[Array, list[Array], Array, float, int], None]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "rowwise_adagrad": rowwise_adagrad,
    "lazy_adam": lazy_adam,
    "ftrl": ftrl,
}
DENSE_REFERENCES = {**REFERENCES, "ftrl": adagrad}
NAMES = sorted(REFERENCES)


def start(name: str, shape: tuple[int, ...]) -> tuple[Slotted, Array, list[Array]]:
    """A random variable with the optimizer's slots, and copies for a reference."""
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    target = slotted(optimizer(name), tf.Variable(weights))
    return target, weights.astype(np.float64), [slot.numpy().astype(np.float64) for slot in target.slots.values()]


def assert_close(target: Slotted, weights: Array, slots: list[Array]) -> None:
    np.testing.assert_allclose(target.variable.numpy(), weights, rtol=2e-4, atol=1e-5)
    for slot, expected in zip(target.slots.values(), slots, strict=True):
        np.testing.assert_allclose(slot.numpy(), expected, rtol=2e-4, atol=1e-5)


def state(target: Slotted) -> list[npt.NDArray[np.float32]]:
    return [target.variable.numpy(), *(slot.numpy() for slot in target.slots.values())]


def test_every_name_of_the_config_is_another_optimizer() -> None:
    assert set(config.OPTIMIZERS) == set(NAMES)
    assert len({type(optimizer(name)) for name in config.OPTIMIZERS}) == len(NAMES)


@pytest.mark.parametrize("index", [tf.int32, tf.int64])
@pytest.mark.parametrize("name", NAMES)
def test_rows_follow_the_formula_and_the_others_stay_as_they_are(name: str, index: tf.DType) -> None:
    target, weights, slots = start(name, (7, 3))
    before, rng = state(target), np.random.default_rng(2)
    for step, rows in enumerate([[5, 0, 2], [2], [], [5, 2, 6], [2, 0]]):
        gradient, rate = rng.normal(size=(len(rows), 3)).astype(np.float32), 0.3 / (step + 1)
        optimizer(name).apply_rows(
            target, tf.constant(rows, index), tf.constant(gradient), tf.constant(rate), tf.constant(step, tf.int64)
        )
        touched = np.array(rows, np.int64)
        new_weights, new_slots = weights[touched], [slot[touched] for slot in slots]
        REFERENCES[name](new_weights, new_slots, gradient.astype(np.float64), rate, step)
        weights[touched] = new_weights
        for slot, new in zip(slots, new_slots, strict=True):
            slot[touched] = new

    assert_close(target, weights, slots)
    for old, new in zip(before, state(target), strict=True):
        np.testing.assert_array_equal(old[[1, 3, 4]], new[[1, 3, 4]])


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_dense_variables_follow_the_formula(name: str, shape: tuple[int, ...]) -> None:
    target, weights, slots = start(name, shape)
    rng = np.random.default_rng(2)
    for step in range(4):
        gradient = rng.normal(size=shape).astype(np.float32)
        optimizer(name).apply_dense(target, tf.constant(gradient), tf.constant(0.3), tf.constant(step, tf.int64))
        DENSE_REFERENCES[name](weights, slots, gradient.astype(np.float64), 0.3, step)

    assert_close(target, weights, slots)


def test_rowwise_adagrad_keeps_one_number_a_row() -> None:
    target = slotted(optimizer("rowwise_adagrad"), tf.Variable(tf.zeros([4, 16])))

    assert target.slots["row_accumulator"].shape == [4]


KERAS = {
    "sgd": tf_keras.optimizers.SGD,
    "adagrad": tf_keras.optimizers.Adagrad,
    "lazy_adam": tf_keras.optimizers.Adam,
    "ftrl": functools.partial(tf_keras.optimizers.Ftrl, l1_regularization_strength=FTRL_L1),
}


@pytest.mark.parametrize("name", sorted(KERAS))
def test_does_what_keras_does_when_every_row_is_touched(name: str) -> None:
    target, weights, _ = start(name, (4, 3))
    peer, variable = KERAS[name](learning_rate=0.1, jit_compile=False), tf.Variable(weights.astype(np.float32))
    rng = np.random.default_rng(2)
    for step in range(5):
        gradient = tf.constant(rng.normal(size=(4, 3)).astype(np.float32))
        rows = tf.constant(rng.permutation(4))
        ours = tf.gather(gradient, rows)
        optimizer(name).apply_rows(target, rows, ours, tf.constant(0.1), tf.constant(step, tf.int64))
        peer.apply_gradients([(gradient, variable)])

    np.testing.assert_allclose(target.variable.numpy(), variable.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_racing_updates_of_one_row_are_all_applied(name: str) -> None:
    """The same update many times: in whatever order two threads come, the end is that of one thread alone, bit for bit."""
    raced, _, _ = start(name, (3, 8))
    alone, _, _ = start(name, (3, 8))
    updates_of_a_thread = 12_000 if name == "sgd" else 4_000  # enough that unlocked threads lose some; sgd's are quick

    def updates(target: Slotted) -> Callable[[], None]:
        @tf.function
        def many() -> None:
            for _ in tf.range(updates_of_a_thread):
                optimizer(name).apply_rows(target, tf.constant([1]), tf.fill([1, 8], 0.5), tf.constant(0.01), FIRST)

        many.get_concrete_function()  # not in the race
        return many

    def race(update: Callable[[], None]) -> None:
        ready.wait()
        update()

    for target, threads in ((raced, 2), (alone, 1)):
        ready, update = threading.Barrier(threads), updates(target)
        running = [threading.Thread(target=race, args=(update,)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    race(update)

    for one, other in zip(state(raced), state(alone), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_that_is_not_there_changes_nothing_and_gives_the_lock_back() -> None:
    target, _, _ = start("adagrad", (3, 2))
    before = state(target)

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
    def update(rows: tf.Tensor) -> None:
        optimizer("adagrad").apply_rows(target, rows, tf.ones([2, 2]), tf.constant(0.1), FIRST)

    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        update(tf.constant([0, 3], tf.int64))
    for old, new in zip(before, state(target), strict=True):
        np.testing.assert_array_equal(old, new)

    next_one = threading.Thread(target=update, args=(tf.constant([0, 2], tf.int64),), daemon=True)
    next_one.start()
    next_one.join(timeout=30)
    assert not next_one.is_alive()
    assert (state(target)[1][[0, 2]] > before[1][[0, 2]]).all()


def test_an_update_does_not_wait_for_another_ones_gradient() -> None:
    target, _, _ = start("adagrad", (3, 2))
    asked, sent = threading.Event(), threading.Event()

    def slow_gradient() -> npt.NDArray[np.float32]:
        asked.set()
        assert sent.wait(30)
        return np.ones([1, 2], np.float32)

    @tf.function
    def slow() -> None:
        gradient = tf.ensure_shape(tf.numpy_function(slow_gradient, [], tf.float32), [1, 2])
        optimizer("adagrad").apply_rows(target, tf.constant([0]), gradient, tf.constant(0.1), FIRST)

    waiting = threading.Thread(target=slow)
    waiting.start()
    assert asked.wait(30)
    quick = threading.Thread(
        target=optimizer("adagrad").apply_rows,
        args=(target, tf.constant([1]), tf.ones([1, 2]), tf.constant(0.1), FIRST),
    )
    quick.start()
    quick.join(timeout=10)
    was_quick = not quick.is_alive()
    sent.set()
    waiting.join()
    quick.join()
    assert was_quick
    np.testing.assert_allclose(target.slots["accumulator"].numpy(), [[1.1, 1.1], [1.1, 1.1], [0.1, 0.1]])


@pytest.mark.parametrize("name", NAMES)
def test_everything_runs_where_the_caller_says_and_no_table_is_read_whole(name: str) -> None:
    server = "/job:ps/replica:0/task:1"
    table, _, _ = start(name, (6, 2))
    vector, _, _ = start(name, (6,))

    @tf.function
    def update(rows: tf.Tensor, gradient: tf.Tensor) -> None:
        with tf.device(server):
            optimizer(name).apply_rows(table, rows, gradient, tf.constant(0.1), FIRST)
            optimizer(name).apply_dense(vector, tf.ones([6]), tf.constant(0.1), FIRST)

    graph = update.get_concrete_function(tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2])).graph
    operations = [operation for operation in graph.get_operations() if operation.type != "Placeholder"]
    assert {operation.device for operation in operations} == {server}
    assert not {"PyFunc", "EagerPyFunc", "ReadVariableOp"} & {operation.type for operation in operations}


def test_ftrl_sets_weights_without_evidence_to_exactly_zero() -> None:
    target, _, _ = start("ftrl", (3, 2))
    gradient = tf.constant([[0.4 * FTRL_L1, -3 * FTRL_L1], [0.0, 3 * FTRL_L1]])
    for _ in range(2):
        optimizer("ftrl").apply_rows(target, tf.constant([0, 1]), gradient, tf.constant(0.5), FIRST)

    np.testing.assert_array_equal(np.sign(target.variable.numpy()[:2]), [[0, 1], [0, -1]])


def test_ftrl_keeps_what_it_learned_when_the_learning_rate_falls() -> None:
    target, _, _ = start("ftrl", (2, 4))
    rows = tf.constant([0, 1])
    for _ in range(20):
        optimizer("ftrl").apply_rows(target, rows, tf.ones([2, 4]), tf.constant(0.5), FIRST)
    learned = target.variable.numpy()

    for rate in (1e-3, 0.0):
        optimizer("ftrl").apply_rows(target, rows, tf.ones([2, 4]), tf.constant(rate), FIRST)
    np.testing.assert_allclose(target.variable.numpy(), learned, rtol=1e-3)


RATES = {"sgd": 2.0, "adagrad": 1.0, "rowwise_adagrad": 0.2, "lazy_adam": 0.05, "ftrl": 1.0}


@pytest.mark.parametrize("name", NAMES)
def test_learns_planted_weights_of_rows_and_of_a_dense_vector(name: str) -> None:
    rng = np.random.default_rng(0)
    ids, dense = rng.integers(0, 20, (4000, 2)), rng.normal(size=(4000, 3)).astype(np.float32)
    planted = rng.normal(size=20)[ids].sum(axis=1) + dense @ np.array([1.0, -2.0, 0.5])
    clicks = tf.constant((rng.random(4000) < 1 / (1 + np.exp(-planted))).astype(np.float32))
    bayes = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicks, tf.constant(planted, tf.float32)))
    table = slotted(optimizer(name), tf.Variable(tf.random.stateless_normal([30, 1], [0, 0], stddev=0.01)))
    vector = slotted(optimizer(name), tf.Variable(tf.zeros([3])))

    @tf.function
    def train(step: tf.Tensor) -> tf.Tensor:
        start = step * 100 % 4000
        rows, index = tf.unique(tf.reshape(tf.constant(ids)[start : start + 100], [-1]))
        pulled, weights, labels = tf.gather(table.variable, rows), vector.variable.read_value(), clicks[start : start + 100]
        with tf.GradientTape() as tape:
            tape.watch([pulled, weights])
            one_by_one = tf.reduce_sum(tf.reshape(tf.gather(pulled, index), [-1, 2]), axis=1)
            logits = one_by_one + tf.linalg.matvec(tf.constant(dense)[start : start + 100], weights)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        row_gradient, gradient = tape.gradient(loss, [pulled, weights])
        rate = tf.constant(RATES[name])
        optimizer(name).apply_rows(table, rows, tf.convert_to_tensor(row_gradient), rate, step)
        optimizer(name).apply_dense(vector, gradient, rate, step)
        return loss

    losses = [float(train(tf.constant(step, tf.int64))) for step in range(400)]
    assert losses[0] > 0.65
    assert np.mean(losses[-40:]) < float(bayes) + 0.01
