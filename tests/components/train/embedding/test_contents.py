"""The row of unknown keys."""

import numpy as np

from paraserve.components.train.embedding.contents import RARE_ROWS, default_row, rarest

START = np.array([0.1, 0.0], np.float32)
RARE = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)


def test_the_rarest_quarter_whatever_the_order_of_the_keys() -> None:
    keys, frequency = np.arange(8) * 7 - 20, np.array([5, 1, 9, 1, 8, 1, 4, 2])
    order = np.random.default_rng(0).permutation(8)

    assert keys[rarest(keys, frequency)].tolist() == [-13, 1]
    assert keys[order][rarest(keys[order], frequency[order])].tolist() == [-13, 1]


def test_the_rarest_are_at_least_one_and_no_more_than_a_mean_needs() -> None:
    assert rarest(np.array([4]), np.array([1])).tolist() == [0]
    assert rarest(np.array([], np.int64), np.array([], np.int64)).tolist() == []
    many = np.arange(8 * RARE_ROWS)
    assert len(rarest(many, many)) == RARE_ROWS


def test_shared_rows_that_were_trained_are_averaged() -> None:
    shared = np.array([[0.5, 1.0], START, [1.5, 0.0]], np.float32)

    np.testing.assert_allclose(default_row(shared, START, RARE), [1.0, 0.5])


def test_rare_rows_stand_in_for_shared_rows_that_nothing_trained() -> None:
    np.testing.assert_allclose(default_row(np.array([START, START]), START, RARE), [2.0, 4.0])


def test_a_table_that_saw_nothing_keeps_its_start() -> None:
    np.testing.assert_array_equal(default_row(START[None], START, RARE[:0]), START)
