"""Which keys are to go."""

from typing import Any

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
    frequency, seen, taken = rng.integers(1, 30, 400), rng.integers(0, 100, 400), rng.random(400) < 0.7

    recent, frequent, short = (chosen(table, 11, frequency, seen, taken) for table in TABLES[:3])

    for gone, figure in ((recent, seen), (frequent, frequency)):
        assert gone.sum() == 11
        assert not (gone & ~taken).any()
        assert figure[gone].max() <= figure[taken & ~gone].min()
    np.testing.assert_array_equal(short, taken & (seen < 90))


def test_of_equals_exactly_as_many_go_as_must() -> None:
    same = np.ones(50, np.int64)

    assert chosen(TABLES[0], 20, same, same, same == 1).sum() == 20
    assert chosen(TABLES[1], 50, same, same, same == 1).all()


def chosen(table: TableLimits, excess: int, frequency: Any, seen: Any, taken: Any) -> Any:
    parts = (tf.constant(part) for part in (frequency, seen, taken))
    return victims(table, tf.constant(excess), *parts, tf.constant(100, tf.int64)).numpy()
