"""The row that a key starts with: a function of seed and key alone, whatever the server and whoever asks first."""

import math

import tensorflow as tf

_GAMMA = 0x9E3779B97F4A7C15


def initial_rows(keys: tf.Tensor, dimension: int, deviation: float, seed: int) -> tf.Tensor:
    """float32 [n, dimension], normal with mean 0 and the standard deviation `deviation`, for the keys, int64 [n].

    A counter-based generator: SplitMix64 (Steele, Lea and Flood, 2014), started from seed and key, gives a 64-bit number for
    every two weights, which the Box-Muller transform makes normal. The uniforms have 32 bits, so no weight exceeds 6.8
    deviations. Logarithm and cosine differ in their last bit between processors, and between places of one vector; in float64
    that bit is gone when the result is rounded.
    """
    state = _mix(tf.bitwise.bitwise_xor(tf.bitcast(keys, tf.uint64), _mix(tf.constant(seed % 2**64, tf.uint64))))
    counters = tf.range(1, -(-dimension // 2) + 1, dtype=tf.int64)
    bits = _mix(state[:, None] + tf.bitcast(counters, tf.uint64) * tf.constant(_GAMMA, tf.uint64))
    radius = tf.sqrt(-2.0 * tf.math.log(_uniform(bits, 32)))
    angle = 2.0 * math.pi * _uniform(bits, 0)
    normal = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)
    return tf.cast(deviation * normal[:, :dimension], tf.float32)


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """SplitMix64's finaliser, on uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = _fold(bits, shift) * tf.constant(factor, tf.uint64)
    return _fold(bits, 31)


def _fold(bits: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64)))


def _uniform(bits: tf.Tensor, shift: int) -> tf.Tensor:
    """32 bits as the middle of one of 2^32 steps between 0 and 1, float64."""
    steps = tf.bitcast(tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64)), tf.int64) & (2**32 - 1)
    return (tf.cast(steps, tf.float64) + 0.5) * 2.0**-32
