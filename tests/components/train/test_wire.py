"""Numbers on the wire: right in the mean where they are rounded at random, to the nearest elsewhere."""

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components.train.wire import DTYPES, Wire

SIXTEEN = ("bfloat16", "float16")
STEP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Between 1 and 2."""


def over(wire: Wire, values: object) -> np.ndarray:
    """What arrives, float32."""
    encoded = wire.encode(tf.constant(values, tf.float32))
    assert encoded.dtype == tf.as_dtype(wire.dtype)
    return wire.decode(encoded).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_a_number(dtype: str) -> None:
    assert Wire(dtype).bytes == (4 if dtype == "float32" else 2)


def test_float32_arrives_as_it_is() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    for dithered in (False, True):
        np.testing.assert_array_equal(over(Wire("float32", dithered), values), values)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_pulled_numbers_are_rounded_to_the_nearest(dtype: str) -> None:
    step = STEP[dtype]

    arrived = over(Wire(dtype), [1 + 0.4 * step, 1 + 0.6 * step, -1 - 0.6 * step, 0.0])

    np.testing.assert_array_equal(arrived, [1, 1 + step, -1 - step, 0])


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("value", [1.0, 1.1, -1.3, 2.0, 0.999, 3e-3, -7.7e-5, 2.0**-11, 3e-8, 0.0])
def test_pushed_numbers_are_right_in_the_mean(dtype: str, value: float) -> None:
    count = 100_000
    tf.random.set_seed(1)

    arrived = over(Wire(dtype, dithered=True), np.full(count, value)).astype(np.float64)

    exact = np.float64(np.float32(value))
    kinds = np.unique(arrived)
    assert len(kinds) <= 2
    assert kinds[0] <= exact <= kinds[-1]
    error = 4 * arrived.std() / np.sqrt(count) + 1e-3 * STEP[dtype] * abs(exact)
    assert abs(arrived.mean() - exact) <= error


@pytest.mark.parametrize("dithered", [False, True])
def test_what_is_beyond_float16_becomes_its_largest_number(dithered: bool) -> None:
    arrived = over(Wire("float16", dithered), [1e6, -1e6, 65504.0, 3.0])

    np.testing.assert_array_equal(arrived, [65504, -65504, 65504, 3])


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_what_is_no_number_stays_none(dtype: str) -> None:
    assert not np.isfinite(over(Wire(dtype, dithered=True), [np.nan])).any()
