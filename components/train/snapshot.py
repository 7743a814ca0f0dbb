"""Snapshots: the whole state of a training run, addressed by row, so that any number of servers restores it.

    SNAPSHOTS/RUN/epoch-0003/dense.npz            the model's variables and their optimizer slots
    SNAPSHOTS/RUN/epoch-0003/embedding-16-0.npz   rows from a start on: weights and slots
    SNAPSHOTS/RUN/epoch-0003/manifest.json        what it is, and every file's digest; written last

Taken between epochs, while no worker runs.
"""

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components import storage
from paraserve.components.train.embedding.table import Stack
from paraserve.components.train.step import Trainer

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 64 << 20
"""Rows travel and are stored in chunks of about this size."""


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


def write(snapshot: Snapshot, trainer: Trainer) -> Snapshot:
    """Writes the trainer's state to `snapshot.place`, and returns the snapshot with its files' digests."""
    with tempfile.TemporaryDirectory(prefix="paraserve-snapshot-") as name, storage.explained(snapshot.place):
        folder = Path(name)
        _save(folder / "dense.npz", {n: v.numpy() for n, v in trainer.dense_arrays()})
        for stack in trainer.stacks:
            for number, (start, stop) in enumerate(_chunks(stack)):
                arrays = {part: _read_rows(stack, part, start, stop) for part in _parts(stack)}
                _save(folder / f"{stack.layout.name}-{number}.npz", {"start": np.asarray(start), **arrays})
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
    content["history"] = tuple(content["history"])
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
    for name in ("model", "hidden_units", "optimizer"):
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
            for name, variable in trainer.dense_arrays():
                variable.assign(arrays[name])
        for stack in trainer.stacks:
            for path in folder.glob(f"{stack.layout.name}-*.npz"):
                with np.load(path) as arrays:
                    for part in _parts(stack):
                        _write_rows(stack, part, int(arrays["start"]), arrays[part])


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def _parts(stack: Stack) -> list[str]:
    return ["weights", *stack.shards[0].slots]


def _variable(stack: Stack, part: str, server: int) -> tf.Variable:
    shard = stack.shards[server]
    return shard.variable if part == "weights" else shard.slots[part]


def _chunks(stack: Stack) -> Iterator[tuple[int, int]]:
    size = max(1, CHUNK_BYTES // (4 * stack.layout.width))
    for start in range(0, stack.layout.rows, size):
        yield start, min(start + size, stack.layout.rows)


def _held(stack: Stack, server: int, start: int, stop: int) -> tuple[slice, slice]:
    """Of rows `start` to `stop`, those that a server holds: where in the chunk, and where on the server."""
    servers = len(stack.shards)
    first = start + (server - start) % servers
    count = len(range(first, stop, servers))
    return slice(first - start, stop - start, servers), slice(first // servers, first // servers + count)


def _read_rows(stack: Stack, part: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    chunk = np.empty((stop - start, stack.layout.width), np.float32)
    for server in range(len(stack.shards)):
        ours, theirs = _held(stack, server, start, stop)
        chunk[ours] = _variable(stack, part, server)[theirs].numpy()
    return chunk


def _write_rows(stack: Stack, part: str, start: int, chunk: npt.NDArray[np.float32]) -> None:
    for server in range(len(stack.shards)):
        ours, theirs = _held(stack, server, start, start + len(chunk))
        variable = _variable(stack, part, server)
        with tf.device(variable.device):
            rows = tf.range(theirs.start, theirs.stop)
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=chunk[ours])


def read_stack(stack: Stack) -> npt.NDArray[np.float32]:
    """All weights of a stack in order of rows: float32 [rows, width]."""
    return np.concatenate([_read_rows(stack, "weights", start, stop) for start, stop in _chunks(stack)])
