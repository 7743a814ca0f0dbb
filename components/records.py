"""The packed shard format: what ingest writes, and train and evaluate read.

A shard is a TFRecord file (https://www.tensorflow.org/tutorials/load_data/tfrecord). Each record is a block of examples stored
column by column, so that a reader cuts any batch size from it by slicing. All numbers are little-endian:

    int64   [3 + lists]     magic, layout digest, examples n, then for each list column the number of its values
    float32 [n]             labels, 0 or 1
    float32 [n, dense]      dense values as parsed, not transformed; NaN is missing
    int64   [n, categorical] keys (see features.keys)
    for each list column:
    int32   [n]             row lengths
    int64   [values]        keys, row after row

Dense values are kept raw on purpose: their transforms run in the training and the served graph alike, and a later model with
other constants can read the same shards.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from paraserve.components.features import keys
from paraserve.components.features.spec import FeatureSpec

if TYPE_CHECKING:
    import tensorflow as tf

MAGIC = 0x3142525350  # "PSRB1"
BLOCK_ROWS = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The columns of a shard, in the order of its spec."""

    dense: tuple[str, ...]
    categorical: tuple[str, ...]
    lists: tuple[str, ...]
    max_lengths: tuple[int, ...]
    """For each list column the places it takes in an id matrix."""

    @classmethod
    def of(cls, spec: FeatureSpec) -> "Layout":
        return cls(
            dense=tuple(c.name for c in spec.dense),
            categorical=tuple(c.name for c in spec.categorical),
            lists=tuple(c.name for c in spec.lists),
            max_lengths=tuple(c.max_length for c in spec.lists),
        )

    @property
    def digest(self) -> int:
        """Tells shards of different columns apart; stands in every block."""
        return keys.key_of("layout", repr((self.dense, self.categorical, self.lists)))

    @property
    def header_length(self) -> int:
        return 3 + len(self.lists)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Examples, column by column."""

    labels: npt.NDArray[np.float32]
    """float32 [n], 0 or 1."""
    dense: npt.NDArray[np.float32]
    """float32 [n, dense columns], NaN where missing."""
    ids: npt.NDArray[np.int64]
    """int64 [n, categorical columns]."""
    lists: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]], ...] = ()
    """For each list column: row lengths, int32 [n], and keys, int64 [sum of lengths]."""

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> "Block":
        """The examples from `start` up to `stop`."""
        return Block(
            labels=self.labels[start:stop],
            dense=self.dense[start:stop],
            ids=self.ids[start:stop],
            lists=tuple(_list_rows(lengths, values, start, stop) for lengths, values in self.lists),
        )

    def take(self, order: npt.NDArray[np.int64]) -> "Block":
        """The examples at `order` (int64 [taken]), in that order."""
        return Block(
            labels=self.labels[order],
            dense=self.dense[order],
            ids=self.ids[order],
            lists=tuple(_list_take(lengths, values, order) for lengths, values in self.lists),
        )

    @classmethod
    def concatenate(cls, blocks: Sequence["Block"]) -> "Block":
        """One block of all examples; at least one block."""
        return cls(
            labels=np.concatenate([b.labels for b in blocks]),
            dense=np.concatenate([b.dense for b in blocks]),
            ids=np.concatenate([b.ids for b in blocks]),
            lists=tuple(
                (np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
                for parts in zip(*(b.lists for b in blocks), strict=True)
            ),
        )

    def id_matrix(self, layout: Layout) -> npt.NDArray[np.int64]:
        """int64 [n, id_width]: categorical keys, then each list padded with `keys.PADDING` to its `max_length`."""
        matrices = [_padded(*lists, width) for lists, width in zip(self.lists, layout.max_lengths, strict=True)]
        return np.concatenate([self.ids, *matrices], axis=1)


def _list_rows(
    lengths: npt.NDArray[np.int32], values: npt.NDArray[np.int64], start: int, stop: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    first = int(lengths[:start].sum())
    taken = lengths[start:stop]
    return taken, values[first : first + int(taken.sum())]


def _list_take(
    lengths: npt.NDArray[np.int32], values: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    taken = lengths[order]
    # A value's place is its row's start plus its place in the row.
    ends = np.cumsum(taken, dtype=np.int64)
    shift = np.repeat(starts[order] - (ends - taken), taken)
    return taken, values[np.arange(len(shift)) + shift]


def _padded(lengths: npt.NDArray[np.int32], values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    matrix = np.full((len(lengths), width), keys.PADDING, dtype=np.int64)
    matrix[np.arange(width) < lengths[:, None]] = values
    return matrix


def write_shard(path: Path, block: Block, layout: Layout, block_rows: int = BLOCK_ROWS) -> None:
    """Writes a shard, under a temporary name until it is whole. An example list must not exceed its `max_length`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            for start in range(0, len(block), block_rows):
                payload = _pack(block.rows(start, start + block_rows), layout)
                length = struct.pack("<Q", len(payload))
                file.write(length + _masked_crc(length) + payload + _masked_crc(payload))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_shard(path: Path, layout: Layout) -> Block:
    """Reads a whole shard. Raises ValueError when it is damaged or holds other columns."""
    return Block.concatenate([_unpack(payload, path, layout) for payload in _payloads(path)])


def _pack(block: Block, layout: Layout) -> bytes:
    header = [MAGIC, layout.digest, len(block), *(len(values) for _, values in block.lists)]
    parts: list[tuple[Any, str]] = [(header, "<i8"), (block.labels, "<f4"), (block.dense, "<f4"), (block.ids, "<i8")]
    for lengths, values in block.lists:
        parts += [(lengths, "<i4"), (values, "<i8")]
    return b"".join(np.asarray(values, dtype=dtype).tobytes() for values, dtype in parts)


def _unpack(payload: bytes, path: Path, layout: Layout) -> Block:
    header = np.frombuffer(payload, "<i8", layout.header_length)
    if header[0] != MAGIC or header[1] != layout.digest:
        raise ValueError(f"{path} holds other columns than the spec says; ingest the data again with this spec")
    n, offset = int(header[2]), 8 * layout.header_length

    def take(dtype: str, count: int) -> npt.NDArray[Any]:
        nonlocal offset
        array = np.frombuffer(payload, dtype, count, offset)
        offset += array.nbytes
        return array

    labels = take("<f4", n)
    dense = take("<f4", n * len(layout.dense)).reshape(n, len(layout.dense))
    ids = take("<i8", n * len(layout.categorical)).reshape(n, len(layout.categorical))
    lists = tuple((take("<i4", n), take("<i8", int(count))) for count in header[3:])
    return Block(labels=labels, dense=dense, ids=ids, lists=lists)


def _payloads(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while length := file.read(8):
            # The length is checked before it is believed: a damaged one could ask for any amount of memory.
            whole = file.read(4) == _masked_crc(length)
            payload = file.read(*struct.unpack("<Q", length)) if whole else b""
            if not whole or file.read(4) != _masked_crc(payload):
                raise ValueError(f"{path} is damaged before byte {file.tell()}; ingest the data again")
            yield payload


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def read_shard_graph(place: "tf.Tensor", layout: Layout) -> Mapping[str, "tf.Tensor"]:
    """Reads a whole shard inside a TensorFlow graph, on any server that can open `place` (a string scalar).

    Returns:
        labels: float32 [n]; dense: float32 [n, dense columns]; ids: int64 [n, id_width], lists padded as in
        `Block.id_matrix`. A damaged file raises DataLossError, other columns InvalidArgumentError.
    """
    import tensorflow as tf

    # One pass over the blocks; the largest useful shard is a few tens of MB, so a shard is held whole.
    blocks = tf.data.TFRecordDataset(place).map(lambda record: _decode(record, layout), num_parallel_calls=2)
    n_dense, width = len(layout.dense), len(layout.categorical) + sum(layout.max_lengths)

    def append(state: tuple["tf.Tensor", ...], block: tuple["tf.Tensor", ...]) -> tuple["tf.Tensor", ...]:
        return tuple(tf.concat([s, b], axis=0) for s, b in zip(state, block, strict=True))

    start = (tf.zeros([0], tf.float32), tf.zeros([0, n_dense], tf.float32), tf.zeros([0, width], tf.int64))
    labels, dense, ids = blocks.reduce(start, append)
    return {"labels": labels, "dense": dense, "ids": ids}


def _decode(record: "tf.Tensor", layout: Layout) -> tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]:
    import tensorflow as tf

    offset = tf.constant(0, tf.int64)

    def take(dtype: "tf.DType", count: Any) -> "tf.Tensor":
        nonlocal offset
        size = tf.cast(count, tf.int64) * dtype.size
        values = tf.io.decode_raw(tf.strings.substr(record, offset, size), dtype)
        offset += size
        return values

    header = take(tf.int64, layout.header_length)
    tf.debugging.assert_equal(
        header[:2], tf.constant([MAGIC, layout.digest], tf.int64), "a shard of other columns than the spec says"
    )
    n = header[2]
    labels = take(tf.float32, n)
    dense = tf.reshape(take(tf.float32, n * len(layout.dense)), [n, len(layout.dense)])
    matrices = [tf.reshape(take(tf.int64, n * len(layout.categorical)), [n, len(layout.categorical)])]
    for i, width in enumerate(layout.max_lengths):
        lengths, values = take(tf.int32, n), take(tf.int64, header[3 + i])
        padding = tf.constant(keys.PADDING, tf.int64)
        matrices.append(tf.RaggedTensor.from_row_lengths(values, lengths).to_tensor(padding, shape=[None, width]))
    return labels, dense, tf.concat(matrices, axis=1)
