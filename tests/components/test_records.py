"""The packed shard format: round trips, damage, and the same bytes read by NumPy and by TensorFlow."""

import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paraserve.components.features import keys
from paraserve.components.records import MAGIC, Block, Layout, read_shard, read_shard_graph, write_shard

LAYOUT = Layout(dense=("x", "y"), categorical=("a", "b", "c"), lists=("l", "m"), max_lengths=(3, 4))
BARE = Layout(dense=(), categorical=("a",), lists=(), max_lengths=())


def block(rows: int, layout: Layout = LAYOUT, seed: int = 0) -> Block:
    chance = np.random.default_rng(seed)

    def some_keys(*shape: int) -> np.ndarray:
        return chance.integers(-(2**63), 2**63 - 1, shape)

    dense = chance.normal(size=(rows, len(layout.dense))).astype(np.float32)
    dense[chance.random(dense.shape) < 0.3] = np.nan
    lengths = [chance.integers(0, width + 1, rows).astype(np.int32) for width in layout.max_lengths]
    return Block(
        labels=(chance.random(rows) < 0.5).astype(np.float32),
        dense=dense,
        ids=some_keys(rows, len(layout.categorical)),
        lists=tuple((n, some_keys(n.sum())) for n in lengths),
    )


def assert_equal(found: Block, expected: Block) -> None:
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.dense, expected.dense)
    np.testing.assert_array_equal(found.ids, expected.ids)
    for (lengths, values), (n, v) in zip(found.lists, expected.lists, strict=True):
        np.testing.assert_array_equal(lengths, n)
        np.testing.assert_array_equal(values, v)
    assert [str(array.dtype) for array in (found.labels, found.dense, found.ids)] == ["float32", "float32", "int64"]


@pytest.mark.parametrize("layout", [LAYOUT, BARE])
@pytest.mark.parametrize(("rows", "block_rows"), [(1, 8), (8, 8), (21, 8)])
def test_both_readers_read_what_was_written(tmp_path: Path, layout: Layout, rows: int, block_rows: int) -> None:
    path, expected = tmp_path / "s.records", block(rows, layout)
    write_shard(path, expected, layout, block_rows)
    assert_equal(read_shard(path, layout), expected)
    found = read_shard_graph(tf.constant(str(path)), layout)
    np.testing.assert_array_equal(found["labels"], expected.labels)
    np.testing.assert_array_equal(found["dense"], expected.dense)
    np.testing.assert_array_equal(found["ids"], expected.id_matrix(layout))
    assert [p.name for p in tmp_path.iterdir()] == ["s.records"]


def test_a_shard_is_a_tfrecord_file_of_blocks(tmp_path: Path) -> None:
    write_shard(tmp_path / "s", block(21), LAYOUT, block_rows=8)
    records = list(tf.data.TFRecordDataset(str(tmp_path / "s")).as_numpy_iterator())
    headers = [struct.unpack("<5q", record[:40]) for record in records]
    assert [(header[0], header[2]) for header in headers] == [(MAGIC, 8), (MAGIC, 8), (MAGIC, 5)]


def test_the_layout_digest_is_fixed() -> None:
    assert LAYOUT.digest == keys.key_of("layout", "(('x', 'y'), ('a', 'b', 'c'), ('l', 'm'))")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_shard(path, block(5), LAYOUT)
    other = Layout(dense=("x", "z"), categorical=("a", "b", "c"), lists=("l", "m"), max_lengths=(3, 4))
    with pytest.raises(ValueError, match="other columns than the spec says; ingest the data again"):
        read_shard(path, other)
    with pytest.raises(tf.errors.InvalidArgumentError, match="other columns"):
        read_shard_graph(tf.constant(str(path)), other)


@pytest.mark.parametrize("where", [0, 3, 9, 40, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, where: int) -> None:
    path = tmp_path / "s"
    write_shard(path, block(20), LAYOUT, block_rows=8)
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged before byte \d+; ingest the data again"):
        read_shard(path, LAYOUT)
    with pytest.raises(tf.errors.DataLossError):
        read_shard_graph(tf.constant(str(path)), LAYOUT)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_shard_cut_short_is_found(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "s"
    write_shard(path, block(20), LAYOUT, block_rows=8)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match="is damaged"):
        read_shard(path, LAYOUT)
    with pytest.raises(tf.errors.DataLossError):
        read_shard_graph(tf.constant(str(path)), LAYOUT)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    whole = block(20)
    broken = Block(labels=whole.labels, dense=whole.dense, ids=whole.ids, lists=((whole.lists[0][0], "no keys"),))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
        write_shard(tmp_path / "s", broken, LAYOUT)
    assert list(tmp_path.iterdir()) == []


def test_id_matrix_pads_lists() -> None:
    lists = ((np.array([2, 0, 1], np.int32), np.array([21, 22, 23])),)
    some = Block(
        labels=np.zeros(3, np.float32), dense=np.zeros((3, 0), np.float32), ids=np.array([[17], [18], [19]]), lists=lists
    )
    layout = Layout(dense=(), categorical=("a",), lists=("l",), max_lengths=(3,))
    pad = keys.PADDING
    assert some.id_matrix(layout).tolist() == [[17, 21, 22, pad], [18, pad, pad, pad], [19, 23, pad, pad]]


@given(st.data())
@settings(deadline=None)
def test_rows_take_and_concatenate(data: st.DataObject) -> None:
    whole = block(12, seed=data.draw(st.integers(0, 50)))
    cut = data.draw(st.integers(0, 12))
    assert_equal(Block.concatenate([whole.rows(0, cut), whole.rows(cut, 12)]), whole)
    order = data.draw(arrays.arrays(np.int64, st.integers(0, 15), elements=st.integers(0, 11)))
    taken = whole.take(order)
    assert len(taken) == len(order)
    np.testing.assert_array_equal(taken.id_matrix(LAYOUT), whole.id_matrix(LAYOUT)[order])
    np.testing.assert_array_equal(taken.dense, whole.dense[order])
    np.testing.assert_array_equal(taken.labels, whole.labels[order])
