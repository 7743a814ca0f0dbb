"""What numbers look like between workers and servers: float32, or 16 bits that are float32 again on the other side."""

from dataclasses import dataclass

import tensorflow as tf

DTYPES = ("float32", "bfloat16", "float16")
_MANTISSA_BITS = {"bfloat16": 7, "float16": 10}
_SMALLEST_STEP = {"bfloat16": 2.0**-126, "float16": 2.0**-24}
"""Between the smallest numbers; of bfloat16, which has float32's exponents, without the subnormal ones."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction's format."""

    dtype: str
    """One of DTYPES."""
    dithered: bool = False
    """Whether numbers are rounded up or down at random, so that the mean of many is right (stochastic rounding; Gupta et al.,
    2015, https://arxiv.org/abs/1502.02551); else to the nearest."""

    @property
    def bytes(self) -> int:
        """Of a number."""
        return int(tf.as_dtype(self.dtype).size)

    def encode(self, values: tf.Tensor) -> tf.Tensor:
        """For the sender: float32 in, `dtype` out. What is beyond float16's range becomes its largest number."""
        if self.dtype == "float32":
            return values
        if self.dithered:
            values = _dithered(values, self.dtype)
        if self.dtype == "float16":
            values = tf.clip_by_value(values, tf.float16.min, tf.float16.max)
        return tf.cast(values, self.dtype)

    def decode(self, values: tf.Tensor) -> tf.Tensor:
        """For the receiver: float32."""
        return tf.cast(values, tf.float32)


def _dithered(values: tf.Tensor, dtype: str) -> tf.Tensor:
    """Each number as one of the two of `dtype` that it lies between, the nearer the likelier: the expected value is its own."""
    # The exponent alone, as a number: the power of two at or below each value.
    power = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), 0x7F800000), tf.float32)
    step = tf.maximum(power * 2.0 ** -_MANTISSA_BITS[dtype], _SMALLEST_STEP[dtype])
    return step * tf.floor(values / step + tf.random.uniform(tf.shape(values)))
