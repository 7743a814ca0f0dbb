"""The rows that keys start with."""

import math

import numpy as np
import scipy.stats
import tensorflow as tf

from paraserve.components.train.embedding.initial import initial_rows

KEYS = tf.range(-2000, 2000, dtype=tf.int64) * 7919


def test_they_are_normal_and_independent() -> None:
    rows = initial_rows(KEYS, 7, 0.1, seed=3).numpy()

    assert rows.shape == (4000, 7)
    assert scipy.stats.kstest(rows.ravel() / 0.1, "norm").pvalue > 0.01
    correlation = np.corrcoef(rows.T)[np.triu_indices(7, 1)]
    assert np.abs(correlation).max() < 0.06
    neighbours = np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]
    assert abs(neighbours) < 0.03


def test_they_depend_on_seed_and_key_alone() -> None:
    rows = initial_rows(KEYS, 4, 1.0, seed=3).numpy()

    order = np.random.default_rng(0).permutation(4000)[:50]
    np.testing.assert_array_equal(initial_rows(tf.gather(KEYS, order), 4, 1.0, seed=3), rows[order])
    assert (initial_rows(KEYS, 4, 1.0, seed=4).numpy() != rows).mean() > 0.99
    assert len(np.unique(rows[:, 0])) > 3990


def test_they_are_splitmix64_and_box_muller() -> None:
    rows = initial_rows(tf.constant([16, -1], tf.int64), 3, 2.0, seed=-5)

    np.testing.assert_allclose(rows, [_row(16, 3, 2.0, -5), _row(-1, 3, 2.0, -5)], rtol=1e-6)


def _row(key: int, dimension: int, deviation: float, seed: int) -> list[float]:
    """The same in Python's own numbers."""
    state, radii, angles = key % 2**64 ^ _mix(seed % 2**64), [], []
    for i in range(1, dimension // 2 + 2):
        bits = _mix((_mix(state) + i * 0x9E3779B97F4A7C15) % 2**64)
        radii.append(math.sqrt(-2 * math.log(((bits >> 32) + 0.5) / 2**32)))
        angles.append(2 * math.pi * (bits % 2**32 + 0.5) / 2**32)
    normal = [f(angle) * r for f in (math.cos, math.sin) for angle, r in zip(angles, radii, strict=True)]
    return [deviation * x for x in normal[:dimension]]


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31
