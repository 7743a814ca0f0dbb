"""Snapshots: whatever the servers and tables, what is restored is what was taken."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paraserve.components.train.snapshot import (
    FORMAT,
    MANIFEST,
    Snapshot,
    check_fits,
    epoch_place,
    newest,
    partial_place,
    read_manifest,
)


@pytest.mark.slow
def test_static_tables_restore_onto_other_servers_bit_for_bit(training: Any) -> None:
    settings = {"workers": 1, "parameter_servers": 3, "exchange_steps": 2, "optimizer": "rowwise_adagrad"}
    training.with_trainer(_restored, training.folder, **settings, dense_optimizer="lazy_adam")


def _restored(trained: Any, cluster: Any, paths: list[str], folder: Path) -> None:
    from paraserve.components.train import snapshot
    from paraserve.components.train.embedding import state
    from tests.components.train.trainers import train, trainer_of

    train(trained, paths[:2])
    taken = snapshot.write(some(str(folder / "taken")), trained)

    for changes in ({"parameter_servers": 2}, {"partitioner": "min_size"}):
        other = trainer_of(trained.config, seed=9, **changes)
        (before,) = state.pieces(other.groups[0])
        snapshot.restore(snapshot.read_manifest(taken.place), other)

        np.testing.assert_equal(other.dense.arrays(), trained.dense.arrays())
        (expected,), (piece,) = (state.pieces(trainer.groups[0]) for trainer in (trained, other))
        np.testing.assert_equal(piece, expected)
        assert {name: len(rows) for name, rows in piece.items() if name != "start"} == {"weights": 144, "row_accumulator": 144}
        assert (before["weights"] != expected["weights"]).any(axis=1).all()
        assert [len(group.shards) for group in other.groups] == [1 if "partitioner" in changes else 2]

    (folder / "taken" / "dense.npz").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"taken is damaged: dense.npz is missing or changed; resume from another"):
        snapshot.restore(taken, trained)


def some(place: str, **said: Any) -> Snapshot:
    empty: dict[str, Any] = {
        "settings": {},
        "spec_digest": "",
        "data_digest": "",
        "history": (),
        "finished": False,
        "files": {},
    }
    return Snapshot(place=place, **{"epoch": 0, "done": (), **empty, **said})


def test_the_newest_snapshot_is_the_one_that_knows_most(tmp_path: Path) -> None:
    places = [
        partial_place(str(tmp_path), 0, 9),
        partial_place(str(tmp_path), 0, 10),
        epoch_place(str(tmp_path), 1),
        partial_place(str(tmp_path), 1, 2),
        epoch_place(str(tmp_path), 10),
        partial_place(str(tmp_path), 10, 1),
    ]
    assert newest(str(tmp_path)) is None
    for number, place in enumerate(places):
        write_manifest(some(place, epoch=number, done=("a",) * number))
        found = newest(str(tmp_path))
        assert found == some(place, epoch=number, done=("a",) * number)
    unfinished = Path(epoch_place(str(tmp_path), 11))
    unfinished.mkdir()
    (unfinished / "dense.npz").write_bytes(b"")

    assert found == newest(str(tmp_path))


@pytest.mark.parametrize("name", ["model", "hidden_units", "optimizer", "dense_optimizer"])
def test_a_snapshot_of_other_settings_or_columns_is_refused_with_the_remedy(name: str) -> None:
    settings = {"model": "m", "hidden_units": "8", "optimizer": "sgd", "dense_optimizer": "", "epochs": 3}
    taken = some("place", settings=settings, spec_digest="a")

    check_fits(taken, {**settings, "epochs": 4}, "a")
    with pytest.raises(ValueError, match=f"at place has {name} '{settings[name]}', this run 'other'; make them equal"):
        check_fits(taken, {**settings, name: "other"}, "a")
    with pytest.raises(ValueError, match="taken with another feature spec; use that spec, or start anew"):
        check_fits(taken, settings, "b")


def test_what_is_no_snapshot_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no snapshot at .*nowhere \(no manifest.json\); name a folder such as"):
        read_manifest(str(tmp_path / "nowhere"))
    write_manifest(some(str(tmp_path / "old")), version=1)
    with pytest.raises(ValueError, match="has format 1; this version reads 2"):
        read_manifest(str(tmp_path / "old"))


def write_manifest(snapshot: Snapshot, version: int = FORMAT) -> None:
    folder = Path(snapshot.place)
    folder.mkdir()
    content = {"format": version, **dataclasses.asdict(snapshot)}
    content.pop("place")
    (folder / MANIFEST).write_text(json.dumps(content))
