"""Shards of one split: sizes, order, and errors of writing."""

import errno
from pathlib import Path

import numpy as np
import pytest

from paraserve.components import storage
from paraserve.components.features.spec import parse_spec
from paraserve.components.ingest.shards import ShardWriter
from paraserve.components.manifest import Split
from paraserve.components.records import Block, Layout, read_shard

LAYOUT = Layout.of(parse_spec({"label": {"column": "y", "positive_at_least": 1}, "dense": {"x": {}}}))


def written(folder: Path, batch: int, seed: int | None, rows: int = 95) -> tuple[Split, list[float]]:
    folder.mkdir()
    writer = ShardWriter(folder, "train", LAYOUT, 10, seed)
    for start in range(0, rows, batch):
        x = np.arange(start, min(start + batch, rows), dtype=np.float32)
        writer.add(Block(labels=x % 2, dense=x[:, None], ids=np.zeros((len(x), 0), np.int64)))
    split = writer.close()
    values = [v for shard in split.shards for v in read_shard(folder / shard.file, LAYOUT).dense[:, 0].tolist()]
    return split, values


def test_full_shards_in_order(tmp_path: Path) -> None:
    split, values = written(tmp_path / "a", 7, None)
    assert values == list(range(95))
    assert [shard.rows for shard in split.shards] == [10] * 9 + [5]
    assert (split.rows, split.positives) == (95, 47)
    first = split.shards[0]
    assert first.file == "train-00000.records"
    assert first.sha256 == storage.sha256_of(tmp_path / "a" / first.file)
    assert first.bytes == (tmp_path / "a" / first.file).stat().st_size


def test_shuffled_within_four_shards_whatever_the_batches_are(tmp_path: Path) -> None:
    split, values = written(tmp_path / "a", 7, 5)
    same, _ = written(tmp_path / "b", 95, 5)
    other, _ = written(tmp_path / "c", 7, 6)
    assert split == same != other
    assert values != list(range(95))
    assert [sorted(values[i : i + 40]) for i in (0, 40, 80)] == [list(range(40)), list(range(40, 80)), list(range(80, 95))]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full: free some space"),
        (errno.EACCES, "give this user the right"),
        (errno.EIO, "make the place writable"),
    ],
)
def test_what_a_failed_write_says(number: int, message: str) -> None:
    with pytest.raises(OSError, match=f"cannot write to /x: .*; {message}") as caught, storage.explained("/x"):
        raise OSError(number, "raw")
    assert caught.value.errno == number


def test_a_target_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="a part of it is a file"):
        storage.check_writable(str(tmp_path / "file" / "below"))
    storage.check_writable(str(tmp_path / "not" / "there" / "yet"))
    assert not (tmp_path / "not").exists()
