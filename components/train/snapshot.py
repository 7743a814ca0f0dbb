"""Snapshots: the whole state of a training run, addressed by key or row, so that any number of servers restores it.

    SNAPSHOTS/RUN/epoch-0003/dense.npz                        the network's weights, their optimizer slots, its state
    SNAPSHOTS/RUN/epoch-0003/embedding-16-00000.npz           static rows from a start on: weights and slots
    SNAPSHOTS/RUN/epoch-0003/embedding-16-dynamic-00000.npz   keys with their rows: weights, slots, frequency, last step
    SNAPSHOTS/RUN/epoch-0003/manifest.json                    what it is, and every file's digest; written last

Taken while no worker runs.
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paraserve.components import storage
from paraserve.components.train.embedding import state
from paraserve.components.train.trainer import Trainer

MANIFEST = "manifest.json"
FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What a snapshot's manifest says."""

    place: str
    epoch: int
    """Epochs done."""
    settings: Mapping[str, Any]
    """TrainConfig.settings of the run that took it."""
    spec_digest: str
    data_digest: str
    history: tuple[Mapping[str, Any], ...]
    """For each epoch its figures (loss, auc, eval_loss, eval_auc) and its `snapshot`'s place, in whichever run it was taken."""
    finished: bool
    """Whether training ended with this epoch."""
    done: tuple[str, ...]
    """Files of the shards that were trained of the next epoch; empty between epochs."""
    files: Mapping[str, str]
    """File name to sha256."""

    @property
    def best_epoch(self) -> int:
        """The epoch (from 1) with the lowest eval log loss."""
        losses = [figures["eval_loss"] for figures in self.history]
        return losses.index(min(losses)) + 1


def epoch_place(folder: str, epoch: int) -> str:
    """Where a run (`folder`) keeps the snapshot of an epoch."""
    return storage.join(folder, f"epoch-{epoch:04d}")


def partial_place(folder: str, epoch: int, shards: int) -> str:
    """Where it keeps one that was taken after `epoch` epochs and so many shards of the next."""
    return storage.join(folder, f"epoch-{epoch:04d}-shards-{shards:06d}")


def write(snapshot: Snapshot, trainer: Trainer) -> Snapshot:
    """Writes the trainer's state to `snapshot.place`, and returns the snapshot with its files' digests."""
    with tempfile.TemporaryDirectory(prefix="paraserve-snapshot-") as name, storage.explained(snapshot.place):
        folder = Path(name)
        _save(folder / "dense.npz", trainer.dense.arrays())
        for group in trainer.groups:
            for number, piece in enumerate(state.pieces(group)):
                _save(folder / f"{group.layout.name}-{number:05d}.npz", piece)
        digests = {path.name: storage.sha256_of(path) for path in sorted(folder.iterdir())}
        written = dataclasses.replace(snapshot, files=digests)
        content = {"format": FORMAT, **dataclasses.asdict(written)}
        content.pop("place")
        (folder / MANIFEST).write_text(json.dumps(content, indent=1))
        storage.upload_folder(folder, snapshot.place, last=MANIFEST)
    return written


def read_manifest(place: str) -> Snapshot:
    """What the snapshot at `place` is. Raises ValueError when it is none, unfinished or of another format."""
    try:
        content = json.loads(storage.read_bytes(storage.join(place, MANIFEST)))
    except FileNotFoundError as error:
        raise ValueError(f"there is no snapshot at {place} (no {MANIFEST}); name a folder such as .../epoch-0003") from error
    if (found := content.pop("format", None)) != FORMAT:
        raise ValueError(f"the snapshot at {place} has format {found}; this version reads {FORMAT}")
    content |= {name: tuple(content[name]) for name in ("history", "done")}
    return Snapshot(place=place, **content)


def newest(folder: str) -> Snapshot | None:
    """The newest whole snapshot of a run, if there is one."""
    for name in reversed(storage.list_names(folder)):
        if storage.exists(storage.join(folder, name, MANIFEST)):
            return read_manifest(storage.join(folder, name))
    return None


def check_fits(snapshot: Snapshot, settings: Mapping[str, Any], spec_digest: str) -> None:
    """Raises ValueError when the snapshot is of another spec, model or optimizer than those asked for."""
    if snapshot.spec_digest != spec_digest:
        raise ValueError(f"the snapshot at {snapshot.place} was taken with another feature spec; use that spec, or start anew")
    for name in ("model", "hidden_units", "optimizer", "dense_optimizer"):
        if snapshot.settings[name] != settings[name]:
            raise ValueError(
                f"the snapshot at {snapshot.place} has {name} '{snapshot.settings[name]}', this run '{settings[name]}'; "
                "make them equal, or start anew"
            )


def restore(snapshot: Snapshot, trainer: Trainer) -> None:
    """Puts a snapshot's state onto the trainer's servers, however many. Raises ValueError for a damaged file."""
    with storage.local_folder(snapshot.place) as folder:
        for name, digest in snapshot.files.items():
            if not (folder / name).is_file() or storage.sha256_of(folder / name) != digest:
                raise ValueError(
                    f"the snapshot at {snapshot.place} is damaged: {name} is missing or changed; resume from another"
                )
        with np.load(folder / "dense.npz") as arrays:
            trainer.dense.assign(dict(arrays))
        for group in trainer.groups:
            for path in sorted(folder.glob(f"{group.layout.name}-[0-9]*.npz")):
                with np.load(path) as arrays:
                    state.restore(group, dict(arrays))


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **arrays)
