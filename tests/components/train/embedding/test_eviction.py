"""Which keys are to go."""

import numpy as np
import tensorflow as tf

from paraserve.components.train.embedding.eviction import overfull, victims
from paraserve.components.train.embedding.limits import SlotRanges, TableLimits

TABLES = [
    TableLimits(name="recent", max_keys=100, evict="lru"),
    TableLimits(name="frequent", max_keys=100, evict="lfu"),
    TableLimits(name="short", max_keys=100, evict="ttl", ttl_steps=10),
    TableLimits(name="kept", max_keys=100),
]


def test_only_tables_with_a_policy_by_fill_shrink_and_only_when_nearly_full() -> None:
    ranges = SlotRanges.of(TABLES, 1, 1)

    assert overfull(TABLES, ranges, tf.constant([95, 96, 100, 100])).numpy().tolist() == [0, 6, 0, 0]
    assert overfull(TABLES, ranges, tf.constant([100, 0, 0, 0])).numpy().tolist() == [10, 0, 0, 0]


def test_each_policy_chooses_by_its_own_figure() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-1, 4, 400).astype(np.int32)  # -1: a key without a row
    frequency, seen = rng.integers(1, 30, 400), rng.integers(0, 100, 400)

    gone = victims(
        TABLES,
        tf.constant([11, 7, 0, 0]),
        tf.constant(table),
        tf.constant(frequency),
        tf.constant(seen),
        tf.constant(100, tf.int64),
    ).numpy()

    for number, (figure, count) in enumerate([(seen, 11), (frequency, 7)]):
        mine = table == number
        assert (gone & mine).sum() == count
        assert figure[gone & mine].max() <= figure[~gone & mine].min()
    np.testing.assert_array_equal(gone[table == 2], seen[table == 2] < 90)
    assert not gone[(table == 3) | (table == -1)].any()


def test_of_equals_exactly_as_many_go_as_must() -> None:
    same = tf.ones(50, tf.int64)

    gone = victims(TABLES[:1], tf.constant([20]), tf.zeros(50, tf.int32), same, same, tf.constant(2, tf.int64))

    assert gone.numpy().sum() == 20
