"""Slots taken and given back, against a plain model of it."""

import numpy as np
import tensorflow as tf

from paraserve.components.train.embedding.limits import SlotRanges, TableLimits
from paraserve.components.train.embedding.slots import SlotPool, ranks


def test_ranks_number_those_that_want_within_their_table() -> None:
    tables, wants = [1, 0, 1, 1, 0, 2], [True, True, False, True, True, False]

    rank, wanted = ranks(tf.constant(tables), tf.constant(wants), 3)

    assert [int(r) for r, w in zip(rank, wants, strict=True) if w] == [0, 0, 1, 1]
    assert wanted.numpy().tolist() == [2, 2, 0]
    rank, wanted = ranks(tf.zeros(4, tf.int32), tf.constant([True, False, True, True]), 1)
    assert (rank.numpy()[[0, 2, 3]].tolist(), wanted.numpy().tolist()) == ([0, 1, 2], [3])


def test_no_slot_is_given_twice_and_no_table_passes_its_limit() -> None:
    ranges = SlotRanges.of([TableLimits(name=n, max_keys=k) for n, k in (("a", 30), ("b", 7), ("c", 100))], 1, 1)
    pool, rng = SlotPool(ranges), np.random.default_rng(0)
    take = tf.function(pool.take, reduce_retracing=True)
    give_back = [
        tf.function(lambda slots, table=table: (pool.give_back(table, slots), tf.constant(0))[1], reduce_retracing=True)
        for table in range(3)
    ]
    used: dict[int, int] = {}
    ends = ranges.offsets + ranges.limits
    refused = reused = 0
    seen: set[int] = set()
    for _ in range(60):
        tables, wants = rng.integers(0, 3, 12).astype(np.int32), rng.random(12) < 0.8
        room = pool.room().numpy()
        slots, has = (part.numpy() for part in take(tf.constant(tables), tf.constant(wants)))
        for table in range(3):
            assert has[tables == table].sum() == min(room[table], (wants & (tables == table)).sum())
        assert not (has & ~wants).any()
        np.testing.assert_array_equal(slots[~has], tables[~has])
        new = dict(zip(slots[has].tolist(), tables[has].tolist(), strict=True))
        assert len(new) == has.sum()
        assert not new.keys() & used.keys(), "given twice"
        reused += len(new.keys() & seen)
        refused += int((wants & ~has).sum())
        used |= new
        seen |= new.keys()
        assert pool.tables_of(tf.constant(list(used), tf.int32)).numpy().tolist() == list(used.values())
        gone = [slot for slot in used if rng.random() < 0.15]
        for table in range(3):
            give_back[table](tf.constant([slot for slot in gone if used[slot] == table], tf.int32))
            assert set(pool.reached(table).numpy()) == {slot for slot in seen if ranges.offsets[table] <= slot < ends[table]}
        for slot in gone:
            del used[slot]
        assert pool.sizes().numpy().tolist() == np.bincount(list(used.values()), minlength=3).tolist()
    assert refused > 10
    assert reused > 10
    assert 0 <= min(seen) - 3 < max(seen) < ranges.capacity
