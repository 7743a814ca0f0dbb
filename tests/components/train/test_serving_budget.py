"""Which rows fit."""

from typing import Any

import numpy as np
import pytest

from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.serving_budget import ServedRows, choose_rows

FLOAT = 4


def dynamic(frequency: Any, width: int = 4, keys: Any = None, table: Any = None, tables: int = 1) -> TableContents:
    """Tables whose keys were seen so often."""
    frequency = np.asarray(frequency, np.int64)
    n = len(frequency)
    rows = np.arange(n * width, dtype=np.float32).reshape(n, width)
    return TableContents(
        name=f"embedding-{width}",
        width=width,
        tables=tuple(f"table{i}" for i in range(tables)),
        keys=np.arange(n) if keys is None else np.asarray(keys, np.int64),
        table=np.zeros(n, np.int32) if table is None else np.asarray(table, np.int32),
        frequency=frequency,
        defaults=np.zeros([tables, width], np.float32),
        read=lambda positions: rows[positions],
    )


def static(rows: int, width: int = 4) -> StaticContents:
    return StaticContents(name="static", width=width, rows=rows, read=lambda p: np.zeros([len(p), width], np.float32))


def choose(*contents: Any, max_bytes: int = 0, dtype: str = "float32", dense_bytes: int = 0) -> tuple[ServedRows, ...]:
    chosen = choose_rows(contents, False, dtype, max_bytes, dense_bytes)
    assert not max_bytes or dense_bytes + sum(part.bytes for part in chosen) <= max_bytes
    return chosen


def kept_keys(part: ServedRows) -> list[int]:
    assert isinstance(part.contents, TableContents)
    keys: list[int] = part.contents.keys[part.kept].tolist()
    assert keys == sorted(keys)
    return keys


def test_without_a_limit_all_rows_are_kept() -> None:
    (part,) = choose(dynamic([3, 1, 2], keys=[30, -10, 20]))

    assert kept_keys(part) == [-10, 20, 30]
    assert part.whole
    assert part.bytes == 3 * (8 + 4 * FLOAT) + 4 * FLOAT
    assert not choose(dynamic([3, 1, 2]), dtype="bfloat16")[0].whole


def test_a_limit_keeps_the_most_frequent_and_fills_it() -> None:
    frequency = np.random.default_rng(0).permutation(1000)
    row, default = 8 + 4 * FLOAT, 4 * FLOAT

    (part,) = choose(dynamic(frequency), max_bytes=500 * row + default + row - 1)

    assert sorted(frequency[part.kept]) == list(range(500, 1000))
    assert not part.whole
    assert choose(dynamic(frequency), max_bytes=1000 * row + default)[0].whole
    assert len(choose(dynamic(frequency), max_bytes=1000 * row + default - 1)[0].kept) == 999


def test_a_row_must_be_worth_its_bytes() -> None:
    """A row of 40 bytes seen 5 times stands behind one of 24 bytes seen 4 times, and before one seen twice."""
    narrow, wide = dynamic([4, 2], keys=[1, 2]), dynamic([5], width=8, keys=[3])

    first, second = choose(narrow, wide, max_bytes=4 * FLOAT + 8 * FLOAT + 24 + 40)

    assert (kept_keys(first), kept_keys(second)) == ([1], [3])


def test_among_equals_the_lower_keys_are_kept_whatever_their_order() -> None:
    keys = np.random.default_rng(1).permutation(100) - 50
    limit = 40 * 24 + 4 * FLOAT + 8 * FLOAT + 30 * 40

    for order in (np.arange(100), np.arange(100)[::-1]):
        narrow, _ = choose(dynamic(np.ones(100), keys=keys[order]), dynamic([], width=8), max_bytes=limit - 30 * 40)
        assert kept_keys(narrow) == list(range(-50, -10))


def test_static_rows_are_kept_first() -> None:
    limit = 100 * 16 + 4 * FLOAT + 2 * 24

    fixed, part = choose(static(100), dynamic([1, 2, 3]), max_bytes=limit)

    assert (fixed.rows, fixed.bytes) == (100, 1600)
    assert kept_keys(part) == [1, 2]


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1000 + 101 * 16), ("int8", 1000 + 101 * 8)])
def test_what_cannot_be_left_out_must_fit(dtype: str, least: int) -> None:
    tables = (static(100), dynamic([5, 6]))
    assert [part.rows for part in choose(*tables, max_bytes=least, dtype=dtype, dense_bytes=1000)] == [100, 0]

    with pytest.raises(
        ValueError, match=f"`serving_max_bytes` is {least - 1}.* alone take {least} as {dtype}.*`max_keys`"
    ) as error:
        choose(*tables, max_bytes=least - 1, dtype=dtype, dense_bytes=1000)

    assert ("`serving_dtype`" in str(error.value)) == (dtype != "int8")


def test_coverage_is_the_share_of_sightings_in_each_table() -> None:
    contents = dynamic([10, 30, 5, 5, 1], table=[0, 0, 1, 1, 1], tables=3)

    (part,) = choose(contents, max_bytes=3 * 16 + 3 * 24)

    assert part.kept.tolist() == [0, 1, 2]
    assert part.coverage() == {"table0": 1.0, "table1": pytest.approx(5 / 11), "table2": 1.0}
    assert choose(static(3))[0].coverage() == {}
