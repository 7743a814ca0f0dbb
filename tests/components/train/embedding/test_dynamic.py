"""Dynamic tables on real servers, with workers that race."""

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
    places = [np.stack([rng.choice(len(KEYS), 1500, replace=False) for _ in range(40)]) for _ in range(4)]
    counts = [rng.integers(1, 5, p.shape) for p in places]
    limits = [TableLimits(name="wide", max_keys=30_000), TableLimits(name="narrow", max_keys=1001)]
    limits.append(TableLimits(name="late", max_keys=30_000, admit_after=6))
    with servers(workers=4, parameter_servers=2):
        tables = Tables.make(limits, count=2)
        at_once(
            *(
                lambda worker=worker: tables.train(worker, KEYS[places[worker]], table[places[worker]], counts[worker])
                for worker in range(4)
            )
        )

        true = np.zeros(len(KEYS), np.int64)
        for p, c in zip(places, counts, strict=True):
            np.add.at(true, p, c)
        held = [shard.export_keys() for shard in tables.shards]
        for shard, (keys, slots, numbers) in zip(tables.shards, held, strict=True):
            assert len(set(keys)) == len(keys), "a key stands twice"
            assert len(set(slots)) == len(slots), "a slot was given twice"
            np.testing.assert_array_equal(np.bincount(numbers, minlength=3), shard.statistics().keys)
            assert shard.statistics().keys[1] == shard.ranges.limits[1], "the narrow table is not full"
        everyone = np.concatenate([keys for keys, _, _ in held])
        number_of = dict(zip(KEYS.tolist(), range(len(KEYS)), strict=True))
        rows = np.array([number_of[key] for key in everyone.tolist()])
        np.testing.assert_array_equal(table[rows], np.concatenate([numbers for _, _, numbers in held]))
        assert set(rows[table[rows] == 0]) == set(np.flatnonzero((table == 0) & (true > 0)))
        assert set(rows[table[rows] == 2]) == set(np.flatnonzero((table == 2) & (true >= 6)))
        # Those of the narrow table were seen before they had a row, and of theirs not all was counted.
        exact = rows[table[rows] != 1]
        np.testing.assert_array_equal(tables.frequency(KEYS[exact], table[exact]), true[exact])
        waiting = np.sum((table == 2) & (true > 0) & (true < 6))
        assert sum(shard.statistics().candidates for shard in tables.shards) == waiting
