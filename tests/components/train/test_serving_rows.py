"""What rounding does to rows, and what they take."""

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components.train.serving_rows import RowStorage


def stored(rows: np.ndarray, dtype: str, linear: bool = False) -> np.ndarray:
    """The rows as a served model has them."""
    storage = RowStorage(dtype=dtype, width=rows.shape[1], linear=linear)
    numbers, beside = storage.encode(rows)
    assert numbers.nbytes + beside.nbytes == storage.bytes * len(rows)
    decoded: np.ndarray = storage.decode(tf.constant(numbers), tf.constant(beside) if storage.beside else None).numpy()
    assert decoded.dtype == np.float32
    return decoded


@pytest.fixture
def rows() -> np.ndarray:
    """Of very different sizes, one of zeros."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 9)) * 10.0 ** rng.integers(-4, 3, size=(200, 1))
    rows[0] = 0
    return rows.astype(np.float32)


@pytest.mark.parametrize(("dtype", "bytes_of_row"), [("float32", 36), ("bfloat16", 18), ("int8", 8 + 4 + 4)])
def test_bytes(dtype: str, bytes_of_row: int) -> None:
    assert RowStorage(dtype=dtype, width=9, linear=True).bytes == bytes_of_row


def test_float32_is_exact(rows: np.ndarray) -> None:
    np.testing.assert_array_equal(stored(rows, "float32", linear=True), rows)


def test_bfloat16_keeps_eight_bits(rows: np.ndarray) -> None:
    error = np.abs(stored(rows, "bfloat16", linear=True) - rows)

    assert (error <= np.abs(rows) * 2.0**-8).all()
    assert error.max() > 0


def test_int8_is_within_half_a_step_of_each_row(rows: np.ndarray) -> None:
    steps = np.abs(rows).max(axis=1, keepdims=True) / 127

    error = np.abs(stored(rows, "int8") - rows)

    assert (error <= 0.5001 * steps).all()
    assert error.max() > 0
    np.testing.assert_array_equal(stored(rows, "int8")[0], 0)


@pytest.mark.parametrize("weight", [1e4, 1e-5])
def test_int8_keeps_the_linear_weight_and_its_row_apart(rows: np.ndarray, weight: float) -> None:
    rows[:, -1] = weight

    after = stored(rows, "int8", linear=True)

    np.testing.assert_array_equal(after[:, -1], rows[:, -1])
    steps = np.abs(rows[:, :-1]).max(axis=1, keepdims=True) / 127
    assert (np.abs(after - rows)[:, :-1] <= 0.5001 * steps).all()
