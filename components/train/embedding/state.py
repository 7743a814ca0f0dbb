"""What a group of tables holds, in pieces that any number of servers takes back, and as an export reads it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.train.embedding.buckets import server_of
from paraserve.components.train.embedding.contents import RowReader, StaticContents, TableContents, default_row, rarest
from paraserve.components.train.embedding.dynamic import DynamicShard
from paraserve.components.train.embedding.reserved import shared_key
from paraserve.components.train.embedding.store import Rows
from paraserve.components.train.embedding.table import Group, StaticShard
from paraserve.components.train.optimizers import Slotted

PIECE_BYTES = 64 << 20
"""Of the weights in a piece, about."""
Arrays = Mapping[str, npt.NDArray[Any]]


def pieces(group: Group) -> Iterator[Arrays]:
    """All rows with their optimizer slots. A static group's by row number: `start`, `weights`, the slots. A dynamic group's by
    key: `keys`, `tables`, `frequency`, `last_seen`, `weights`, the slots; first the shared rows, whose keys are -1.

    For a time when no worker runs.
    """
    return _dynamic_pieces(group) if group.layout.dynamic else _static_pieces(group)


def restore(group: Group, piece: Arrays) -> None:
    """Puts a piece back. For new tables of any number of servers, while no worker runs."""
    if group.layout.dynamic:
        _restore_dynamic(group, piece)
        return
    for name in _names(group):
        _write_static(group, name, int(piece["start"]), piece[name])


def contents(group: Group) -> StaticContents | TableContents:
    """What an export reads."""
    layout = group.layout
    if not layout.dynamic:
        return StaticContents(
            name=layout.name, width=layout.width, rows=layout.rows, read=lambda numbers: _gather_static(group, numbers)
        )
    shards = [shard for shard in group.shards if isinstance(shard, DynamicShard)]
    exported = [shard.export_keys() for shard in shards]
    keys, slots, tables = (np.concatenate(part) for part in zip(*exported, strict=True))
    server = np.repeat(np.arange(len(shards)), [len(part[0]) for part in exported])

    def read(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        rows = np.empty([len(positions), layout.width], np.float32)
        for number, shard in enumerate(shards):
            mine = server[positions] == number
            rows[mine] = _read(shard, slots[positions[mine]]).values
        return rows

    frequency = np.concatenate([_frequency(shard, slots[server == n]) for n, shard in enumerate(shards)])
    return TableContents(
        name=layout.name,
        width=layout.width,
        tables=tuple(table.name for table in layout.tables),
        keys=keys,
        table=tables,
        frequency=frequency,
        defaults=np.stack(
            [
                _default(group, number, np.flatnonzero(tables == number), frequency, keys, read)
                for number in range(len(layout.tables))
            ]
        ),
        read=read,
    )


def sample(group: Group, rows: int) -> npt.NDArray[np.float32]:
    """Some rows in use, at most `rows`: float32 [n, width]."""
    each = -(-rows // len(group.shards))
    parts = []
    for shard in group.shards:
        if isinstance(shard, DynamicShard):
            slots = shard.export_keys()[1][:each]
            parts.append(_read(shard, slots).values)
        else:
            parts.append(shard.slotted.variable[:each].numpy())
    return np.concatenate(parts)


def _names(group: Group) -> list[str]:
    return ["weights", *(slot.name for slot in group.optimizer.slots)]


def _variable(slotted: Slotted, name: str) -> tf.Variable:
    return slotted.variable if name == "weights" else slotted.slots[name]


def _piece_rows(group: Group) -> int:
    return max(1, PIECE_BYTES // (4 * group.layout.width))


def _static_pieces(group: Group) -> Iterator[Arrays]:
    size = _piece_rows(group)
    for start in range(0, group.layout.rows, size):
        stop = min(start + size, group.layout.rows)
        yield {"start": np.asarray(start), **{name: _read_static(group, name, start, stop) for name in _names(group)}}


def _held(group: Group, server: int, start: int, stop: int) -> tuple[slice, slice]:
    """Of rows `start` to `stop`, those that a server holds: where in the piece, and where on the server."""
    servers = len(group.shards)
    first = start + (server - start) % servers
    count = len(range(first, stop, servers))
    return slice(first - start, stop - start, servers), slice(first // servers, first // servers + count)


def _read_static(group: Group, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    parts = [(_held(group, server, start, stop), _variable(shard.slotted, name)) for server, shard in enumerate(group.shards)]
    piece = np.empty([stop - start, *parts[0][1].shape[1:]], np.float32)
    for (ours, theirs), variable in parts:
        piece[ours] = variable[theirs].numpy()
    return piece


def _write_static(group: Group, name: str, start: int, piece: npt.NDArray[np.float32]) -> None:
    for server, shard in enumerate(group.shards):
        ours, theirs = _held(group, server, start, start + len(piece))
        with tf.device(shard.device):
            rows = tf.range(theirs.start, theirs.stop)
            handle = _variable(shard.slotted, name).handle
            tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=rows, updates=piece[ours])


def _gather_static(group: Group, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    rows = np.empty([len(numbers), group.layout.width], np.float32)
    servers = len(group.shards)
    for server, shard in enumerate(group.shards):
        mine = numbers % servers == server
        assert isinstance(shard, StaticShard)
        with tf.device(shard.device):
            rows[mine] = tf.gather(shard.slotted.variable, numbers[mine] // servers).numpy()
    return rows


def _dynamic_pieces(group: Group) -> Iterator[Arrays]:
    size = _piece_rows(group)
    tables = np.arange(len(group.layout.tables), dtype=np.int32)
    for shard in group.shards:
        assert isinstance(shard, DynamicShard)
        yield _arrays(np.full(len(tables), -1, np.int64), tables, _read(shard, tables))
        keys, slots, table_of = shard.export_keys()
        for start in range(0, len(keys), size):
            part = slice(start, start + size)
            yield _arrays(keys[part], table_of[part], _read(shard, slots[part]))


def _arrays(keys: npt.NDArray[np.int64], tables: npt.NDArray[np.int32], rows: Rows) -> Arrays:
    seen = {"frequency": rows.frequency, "last_seen": rows.last_seen}
    return {"keys": keys, "tables": tables, **seen, "weights": rows.values, **rows.optimizer}


def _restore_dynamic(group: Group, piece: Arrays) -> None:
    keys, tables = piece["keys"], piece["tables"]
    shards = [shard for shard in group.shards if isinstance(shard, DynamicShard)]
    if np.all(keys == -1):
        # The servers of the snapshot each had a shared row of their own; which of them goes on is all the same.
        for shard in shards:
            shard.write(tables, _rows(group, piece, np.ones(len(keys), np.bool_)))
        return
    server = server_of(tf.constant(keys), len(shards), group.sharding).numpy()
    for number, shard in enumerate(shards):
        mine = server == number
        placed = shard.restore(keys[mine], tables[mine], _rows(group, piece, mine))
        if placed < int(mine.sum()):
            print(
                f"{group.layout.name}: {int(mine.sum()) - placed} keys of the snapshot have no room on server {number}; they "
                "share a row. Raise `max_keys` to keep them",
                flush=True,
            )


def _rows(group: Group, piece: Arrays, mask: npt.NDArray[np.bool_]) -> Rows:
    return Rows(
        values=piece["weights"][mask],
        optimizer={slot.name: piece[slot.name][mask] for slot in group.optimizer.slots},
        frequency=piece["frequency"][mask],
        last_seen=piece["last_seen"][mask],
    )


def _read(shard: DynamicShard, slots: npt.NDArray[np.int32]) -> Rows:
    return shard.read(slots.astype(np.int32))


def _frequency(shard: DynamicShard, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    size = 1 << 20
    parts = [_read(shard, slots[start : start + size]).frequency for start in range(0, len(slots), size)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _default(
    group: Group,
    number: int,
    of_table: npt.NDArray[np.int64],
    frequency: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    read: RowReader,
) -> npt.NDArray[np.float32]:
    """The default row of a table, whose keys stand at the positions `of_table`."""
    shards = [shard for shard in group.shards if isinstance(shard, DynamicShard)]
    shared = np.concatenate([_read(shard, np.array([number])).values for shard in shards])
    start = group.row_format.initial(tf.constant([shared_key(group.layout.tables[number].name)], tf.int64)).numpy()
    return default_row(shared, start, read(of_table[rarest(keys[of_table], frequency[of_table])]))
