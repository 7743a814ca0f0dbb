"""Dynamic tables on real servers, with workers that race."""

import functools
import os
import threading
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
KEYS = RNG.integers(-(2**63), 2**63 - 1, 20_000)


def test_racing_workers_give_every_key_one_slot_and_count_every_sighting(training: Any) -> None:
    training.call(_race)


def _race() -> None:
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, at_once, servers

    rng = np.random.default_rng(1)
    table = np.arange(len(KEYS)) % 3
    places = [np.stack([rng.choice(len(KEYS), 1500, replace=False) for _ in range(20)]) for _ in range(4)]
    counts = [rng.integers(1, 5, p.shape) for p in places]
    limits = [TableLimits(name="wide", max_keys=30_000), TableLimits(name="narrow", max_keys=1001)]
    limits.append(TableLimits(name="late", max_keys=30_000, admit_after=6))
    with servers(workers=4, parameter_servers=2):
        tables = Tables.make(limits, count=2)
        largest, running = np.zeros((2, 3), np.int64), True

        def watch() -> None:
            while running:
                np.maximum(largest, [shard.statistics().keys for shard in tables.shards], out=largest)

        def work(worker: int) -> None:
            tables.train(worker, KEYS[places[worker]], table[places[worker]], counts[worker])

        watcher = threading.Thread(target=watch)
        watcher.start()
        at_once(*(functools.partial(work, worker) for worker in range(4)))
        running = False
        watcher.join()

        assert largest[:, 1].tolist() == [shard.ranges.limits[1] for shard in tables.shards], "over budget, or never full"
        true = np.zeros(len(KEYS), np.int64)
        for p, c in zip(places, counts, strict=True):
            np.add.at(true, p, c)
        held = [shard.export_keys() for shard in tables.shards]
        for shard, (keys, slots, numbers) in zip(tables.shards, held, strict=True):
            assert len(set(keys)) == len(keys), "a key stands twice"
            assert len(set(slots)) == len(slots), "a slot was given twice"
            np.testing.assert_array_equal(np.bincount(numbers, minlength=3), shard.statistics().keys)
        everyone = np.concatenate([keys for keys, _, _ in held])
        number_of = dict(zip(KEYS.tolist(), range(len(KEYS)), strict=True))
        rows = np.array([number_of[key] for key in everyone.tolist()])
        np.testing.assert_array_equal(table[rows], np.concatenate([numbers for _, _, numbers in held]))
        assert set(rows[table[rows] == 0]) == set(np.flatnonzero((table == 0) & (true > 0)))
        assert set(rows[table[rows] == 2]) == set(np.flatnonzero((table == 2) & (true >= 6)))
        # A key of the full table was not counted while it shared a row.
        exact = rows[table[rows] != 1]
        np.testing.assert_array_equal(tables.frequency(KEYS[exact], table[exact]), true[exact])
        waiting = np.sum((table == 2) & (true > 0) & (true < 6))
        assert sum(shard.statistics().candidates for shard in tables.shards) == waiting
        assert sum(shard.statistics().refused[1] for shard in tables.shards) > 0


def test_no_sighting_is_lost_when_workers_add_to_the_same_slots(training: Any) -> None:
    training.call(_add)


def _add() -> None:
    import tensorflow as tf

    from paraserve.components.train.cluster import WORKER, device
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, at_once, servers

    with servers(workers=4, parameter_servers=1):
        tables = Tables.make([TableLimits(name="a", max_keys=3000)], count=1)
        slots = tf.constant(tables.train(0, KEYS[:2000], 0)[0])

        @tf.function
        def add() -> tf.Tensor:
            for _ in range(40):
                tables.shards[0].touch(slots, tf.ones_like(slots), tf.constant(3, tf.int64))
            return tf.constant(0)

        add.get_concrete_function()

        def work(worker: int) -> None:
            with tf.device(device(WORKER, worker)):
                for _ in range(5):
                    add()

        at_once(*(functools.partial(work, worker) for worker in range(4)))

        assert set(tables.frequency(KEYS[:2000], np.zeros(2000))) == {1 + 4 * 5 * 40}


def test_a_key_has_its_row_from_its_nth_sighting_on(training: Any) -> None:
    training.call(_admission)


def _admission() -> None:
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, servers

    with servers(workers=1, parameter_servers=2):
        tables = Tables.make(
            [TableLimits(name="now", max_keys=100), TableLimits(name="late", max_keys=100, admit_after=5)], count=2
        )
        seen, counts = KEYS[:60], np.repeat([1, 2, 7], 20)

        slots = np.stack([tables.train(0, seen, 1, counts, step=step)[0] for step in range(5)])

        sightings = counts * np.arange(1, 6)[:, None]
        np.testing.assert_array_equal(slots == 1, sightings < 5)
        np.testing.assert_array_equal(tables.frequency(seen, 1), counts * 5)
        assert (tables.find(KEYS[60:80], 1) == 1).all()
        assert sum(shard.statistics().candidates for shard in tables.shards) == 0
        assert not (tables.train(0, KEYS[60:80], 0) == 0).any(), "the other table admits at once"

        # Who waits is remembered up to a bound; at half of it the next look at the tables forgets them all.
        for shard in tables.shards:
            assert shard.evict(5).sum() == 0
        tables.train(0, KEYS[100:220], 1)
        waiting = [shard.statistics().candidates for shard in tables.shards]
        assert sum(waiting) == 120
        assert all(w > shard.ranges.capacity // 2 for w, shard in zip(waiting, tables.shards, strict=True))
        for shard in tables.shards:
            shard.evict(6)
        assert sum(shard.statistics().candidates for shard in tables.shards) == 0
        assert (tables.train(0, KEYS[100:220], 1, 4) == 1).all(), "one sighting before and four now, yet forgotten"
        tables.train(0, KEYS[1000:1500], 1)
        assert all(shard.statistics().candidates == shard.ranges.capacity for shard in tables.shards), "beyond the bound"
        np.testing.assert_array_equal(tables.find(seen, 1), slots[4])


def test_evicted_keys_leave_their_slots_to_new_ones(training: Any) -> None:
    training.call(_eviction)


def _eviction() -> None:
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, servers

    limits = [
        TableLimits(name="recent", max_keys=400, evict="lru"),
        TableLimits(name="frequent", max_keys=400, evict="lfu"),
        TableLimits(name="short", max_keys=400, evict="ttl", ttl_steps=10),
        TableLimits(name="kept", max_keys=400),
    ]
    number = np.repeat(np.arange(4), 500)
    keys = KEYS[:2000]
    with servers(workers=1, parameter_servers=2):
        tables = Tables.make(limits, count=2)
        untrained = Tables.make(limits, count=2)
        # Each table's first 200 keys are seen at step 1 five times, the next 200 at step 2, and then it is full.
        place = np.arange(2000) % 500
        for step, chosen in enumerate([place < 200, (place >= 200) & (place < 400), place >= 400], start=1):
            tables.train(0, keys[chosen], number[chosen], 5 if step == 1 else 1, step=step)
        for shard in tables.shards:
            assert (shard.statistics().keys >= 0.95 * shard.ranges.limits).all()
        had_row = tables.find(keys, number) >= 4
        refused = sum(shard.statistics().refused for shard in tables.shards)
        np.testing.assert_array_equal(refused, np.bincount(number[~had_row], minlength=4))

        evicted = sum(shard.evict(12) for shard in tables.shards)

        has_row = tables.find(keys, number) >= 4
        gone = had_row & ~has_row
        np.testing.assert_array_equal(evicted, np.bincount(number[gone], minlength=4))
        np.testing.assert_array_equal(evicted, sum(shard.statistics().evicted for shard in tables.shards))
        for shard in tables.shards:
            assert (shard.statistics().keys[:2] == (0.9 * shard.ranges.limits[:2]).astype(int)).all()
        assert (place[gone & (number == 0)] < 200).all(), "lru takes the oldest"
        assert (place[gone & (number == 1)] >= 200).all(), "lfu takes the rarest"
        np.testing.assert_array_equal(place[gone & (number == 2)], np.arange(200), "ttl takes those of step 1")
        assert not gone[number == 3].any()
        assert not any(shard.evict(12).any() for shard in tables.shards), "nothing is left to do"

        # The rows that stayed are untouched; a key that comes back starts again, in a slot that was freed.
        stayed = keys[has_row]
        frequency = tables.frequency(stayed, number[has_row])
        np.testing.assert_array_equal(frequency, np.where(place[has_row] < 200, 5, 1))
        freed = [set(shard.export_keys()[1].tolist()) for shard in tables.shards]
        assert sum(map(len, freed)) == has_row.sum()
        back = gone & (number != 3)
        before = tables.find(keys[has_row], number[has_row])
        _spoil(tables)
        slots = tables.train(0, keys[back], number[back], step=13)[0]
        np.testing.assert_array_equal(tables.find(keys[has_row], number[has_row]), before)
        assert (slots >= 4).all()
        assert (tables.frequency(keys[back], number[back]) == 1).all()
        untrained.train(0, keys[back], number[back])
        np.testing.assert_array_equal(*(t.rows(keys[back], number[back])[0] for t in (tables, untrained)))
        for shard in tables.shards:
            assert (shard.statistics().keys <= shard.ranges.limits).all()
            _, slots, _ = shard.export_keys()
            assert len(set(slots)) == len(slots)
            assert slots.max() < shard.ranges.capacity


def _spoil(tables: Any) -> None:
    """Overwrites every row that no key holds, so that a slot that is reused without a fresh start shows."""
    import tensorflow as tf

    for shard in tables.shards:
        _, used, _ = shard.export_keys()
        free = np.setdiff1d(np.arange(len(shard.tables), shard.ranges.capacity), used)
        for variable in (shard.slotted.variable, *shard.slotted.slots.values()):
            with tf.device(shard.device):
                variable.scatter_update(tf.IndexedSlices(tf.fill([len(free), variable.shape[1]], 99.0), free))


def test_rows_move_to_another_number_of_servers(training: Any) -> None:
    training.call(_restore)


def _restore() -> None:
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, servers

    limits = [TableLimits(name="a", max_keys=3000, admit_after=2), TableLimits(name="b", max_keys=3000)]
    keys, number = KEYS[:2000], np.arange(2000) % 2
    with servers(workers=1, parameter_servers=3):
        old = Tables.make(limits, count=2)
        old.train(0, keys, number, np.arange(2000) % 7 + 2, step=5)
        old.overwrite(lambda rows, keys: rows + 1.0)
        values, optimizer, frequency, last_seen = old.rows(keys, number)

        for count, sharding in ((3, "hash"), (1, "hash"), (3, "range")):
            new = Tables.make(limits, count=count, sharding=sharding)
            assert new.restore(old) == 2000
            for before, after in zip((values, optimizer, frequency, last_seen), new.rows(keys, number), strict=True):
                np.testing.assert_array_equal(before, after)
            assert (last_seen == 5).all()
            new.train(0, keys, number, step=6)
            np.testing.assert_array_equal(new.frequency(keys, number), frequency + 1)
            assert sum(shard.statistics().keys.sum() for shard in new.shards) == 2000

        for shard in new.shards:
            shard.forget()
            assert shard.statistics().keys.sum() == len(shard.export_keys()[0]) == 0
        assert (new.find(keys, number) == number).all()
        assert new.restore(old) == 2000
        np.testing.assert_array_equal(values, new.rows(keys, number)[0])

        small = Tables.make([TableLimits(name=t.name, max_keys=600) for t in limits], count=2)
        assert small.restore(old) == 1200
        assert (small.find(keys, number) < 2).sum() == 800


def test_a_key_starts_with_the_same_row_whatever_the_servers(training: Any) -> None:
    training.call(_starts)


def _starts() -> None:
    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import WIDTH, Tables, servers

    limits = [TableLimits(name="a", max_keys=3000)]
    with servers(workers=1, parameter_servers=3):
        starts = []
        for count, sharding, seed in ((1, "hash", 7), (3, "hash", 7), (2, "range", 7), (2, "hash", 8)):
            tables = Tables.make(limits, count=count, sharding=sharding, seed=seed)
            tables.train(0, KEYS[:500], 0)
            starts.append(tables.rows(KEYS[:500], np.zeros(500, int))[:2])

        (values, optimizer), *others, (other_seed, _) = starts
        for again in others:
            np.testing.assert_array_equal(values, again[0])
            np.testing.assert_array_equal(optimizer, again[1])
        assert (values[:, :-1] != other_seed[:, :-1]).all()
        assert values.shape == (500, WIDTH)
        assert values[:, :-1].std() == pytest.approx(0.1, rel=0.1)
        assert (values[:, -1] == 0).all(), "linear weights start at 0"
        assert (optimizer == np.float32(0.1)).all(), "Adagrad's slot starts at 0.1"


def test_capacity_costs_nothing_until_it_is_used(training: Any) -> None:
    training.call(_reserve)


def _reserve() -> None:
    # As for real parameter servers: TensorFlow's own allocator keeps and touches more than it is asked for.
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    import psutil

    from paraserve.components.train.embedding.dynamic import DynamicShard
    from paraserve.components.train.embedding.limits import TableLimits
    from paraserve.components.train.embedding.store import RowFormat
    from paraserve.components.train.optimizers import optimizer
    from tests.components.train.embedding.servers import WIDTH, Tables, servers

    with servers(workers=1, parameter_servers=1) as cluster:
        server = psutil.Process(cluster.pids["/job:ps/replica:0/task:0"])
        Tables.make([TableLimits(name="a", max_keys=1000)], count=1).train(0, KEYS[:500], 0)
        before = server.memory_info()

        tables = Tables.make([TableLimits(name=name, max_keys=20_000_000) for name in "ab"], count=1)
        tables.train(0, KEYS[:4000], np.arange(4000) % 2)

        after = server.memory_info()
        reserved = 40_000_000 * (4 * WIDTH * 2 + 8)  # rows, Adagrad's slots, sightings
        assert after.vms - before.vms > reserved
        assert after.rss - before.rss < 0.05 * reserved

        row = RowFormat(width=100_000, linear=False, deviation=0.1, seed=1)
        with pytest.raises(ValueError, match="lower `max_keys` or add parameter servers"):
            DynamicShard(
                server=0,
                servers=1,
                sharding="hash",
                tables=[TableLimits(name="c", max_keys=2_000_000_000)],
                rows=row,
                optimizer=optimizer("sgd"),
            )


def test_an_error_inside_the_lock_gives_it_back(training: Any) -> None:
    training.call(_error)


def _error() -> None:
    import tensorflow as tf

    from paraserve.components.train.embedding.limits import TableLimits
    from tests.components.train.embedding.servers import Tables, servers

    with servers(workers=1, parameter_servers=1):
        tables = Tables.make([TableLimits(name="a", max_keys=100)], count=1)

        with pytest.raises(tf.errors.OpError):
            tables.train(0, KEYS[:1], 5)  # there is no table 5

        assert (tables.train(0, KEYS[1:50], 0) >= 1).all()
