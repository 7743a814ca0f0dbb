"""Groups of tables on real servers."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_keys_that_share_a_row_teach_one_row_however_long_a_worker_holds_it(training: Any) -> None:
    """With a copy for each key as many changes of one row would be added up: lazy Adam's would explode."""
    training.make_dynamic(user={"admit_after": 100_000}, tags={"max_keys": 4})
    settings = {"workers": 1, "parameter_servers": 2, "batch_size": 50, "overlap": False, "hidden_units": "4"}
    training.with_trainer(_share, **settings, optimizer="lazy_adam", learning_rate=0.05, exchange_steps=1)


def _share(stepwise: Any, cluster: Any, paths: list[str]) -> None:
    from paraserve.components.train.embedding import state
    from tests.components.train.trainers import rows_by_key, train, trainer_of

    held = trainer_of(stepwise.config, exchange_steps=4)
    for trainer in (stepwise, held):
        train(trainer, paths[:2])
    rows, others = (rows_by_key(trainer.groups[0]) for trainer in (stepwise, held))
    pieces = [[piece for piece in state.pieces(t.groups[0]) if (piece["keys"] == -1).all()] for t in (stepwise, held)]

    assert len(rows["weights"]) == 30 + 4, "users share a row, and so do four of the tags"
    for name in ("weights", "momentum", "velocity"):
        assert rows[name].keys() == others[name].keys()
        for key, row in rows[name].items():
            np.testing.assert_allclose(others[name][key], row, rtol=1e-3, atol=1e-6)
        for shared, other in zip(*pieces, strict=True):
            np.testing.assert_allclose(other[name], shared[name], rtol=1e-3, atol=1e-6)
    assert all(np.abs(shared["momentum"][[0, 2]]).max() > 1e-3 for shared in pieces[0])


def test_every_sighting_of_a_key_is_counted_that_of_a_missing_value_too(training: Any) -> None:
    """Four workers race through the same shards, in which values are missing or out of range, and lists are padded."""
    training.make_dynamic()
    settings = {"workers": 4, "parameter_servers": 2, "batch_size": 20, "exchange_steps": 3, "hidden_units": "4"}
    training.with_trainer(_count, training.folder, **settings)


def _count(trainer: Any, cluster: Any, paths: list[str], folder: Any) -> None:
    from paraserve.components.features.keys import MISSING, OUT_OF_RANGE
    from paraserve.components.records import read_shard, write_shard
    from paraserve.components.train.embedding.reserved import own_key
    from tests.components.train.trainers import Call, rows_by_key, train

    layout, expected, changed = trainer.manifest.layout, Counter[int](), []
    for path in map(Path, paths[:3]):
        block = read_shard(path, layout)
        ids = block.ids.copy()
        ids[::5, 0], ids[1::7, 1], ids[2::7, 1] = MISSING, MISSING, OUT_OF_RANGE
        (lengths, tags), history = block.lists
        tags = np.where(np.arange(len(tags)) % 9 == 0, OUT_OF_RANGE, tags)
        changed.append(str(folder / path.name))
        write_shard(Path(changed[-1]), dataclasses.replace(block, ids=ids, lists=((lengths, tags), history)), layout)
        for table, keys in (("user", ids[:, 0]), ("item", ids[:, 1]), ("tags", tags), ("item", history[1])):
            expected.update(own_key(table, key) if key in (MISSING, OUT_OF_RANGE) else key for key in keys.tolist())

    calls = [Call(lambda worker=worker: train(trainer, changed, worker)) for worker in range(4)]
    for call in calls:
        call.result(90)

    (group,) = trainer.groups
    assert rows_by_key(group)["frequency"] == {key: 4 * count for key, count in expected.items()}
    for shard in group.shards:
        keys, slots, _ = shard.export_keys()
        assert len(set(slots)) == len(set(keys)) == len(keys)
