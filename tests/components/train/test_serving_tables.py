"""Lookups in a served model's tables, against a dictionary."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components.features.keys import MISSING, OUT_OF_RANGE, PADDING
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.train import serving_tables
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.layout import GroupLayout
from paraserve.components.train.embedding.reserved import own_key
from paraserve.components.train.serving_budget import choose_rows
from paraserve.components.train.serving_tables import ServedTables

WIDTH = 3
SPEC = {
    "label": {"column": "click", "positive_at_least": 1},
    "categorical": {"user": {"dimension": WIDTH, "max_keys": 100}, "item": {"dimension": WIDTH, "max_keys": 100}},
    "lists": {"history": {"dimension": WIDTH, "max_keys": 100, "table": "item", "pooling": "sum", "max_length": 2}},
}
BIG = np.iinfo(np.int64)
KEYS = {100: 0, -7: 0, BIG.max - 1: 0, own_key("user", MISSING): 0, 55: 1, 60: 1, own_key("item", OUT_OF_RANGE): 1}
"""With the numbers of their tables."""


@pytest.fixture
def spec() -> FeatureSpec:
    return parse_spec(SPEC)


@pytest.fixture
def contents() -> TableContents:
    rows = np.random.default_rng(0).normal(size=(len(KEYS), WIDTH)).astype(np.float32)
    return TableContents(
        name="embedding-3-dynamic",
        width=WIDTH,
        tables=("user", "item"),
        keys=np.array(list(KEYS)),
        table=np.array(list(KEYS.values()), np.int32),
        frequency=np.arange(len(KEYS)),
        defaults=np.array([[0.5, 1, 2], [-1, -2, -0.5]], np.float32),
        read=lambda positions: rows[positions],
    )


def expected(contents: TableContents, table: int, key: int, kept: Any) -> np.ndarray:
    """A key's row, read from the contents."""
    key = own_key(contents.tables[table], key) if key in (MISSING, OUT_OF_RANGE) else key
    (found,) = np.nonzero(contents.keys == key)
    row: np.ndarray = contents.read(found)[0] if len(found) and found[0] in kept else contents.defaults[table]
    return row


def served(spec: FeatureSpec, contents: TableContents | StaticContents, dtype: str = "float32", max_bytes: int = 0) -> Any:
    (layout,) = GroupLayout.all_of(spec, linear=False)
    (rows,) = choose_rows([contents], False, dtype, max_bytes, 0)
    return rows, ServedTables(layout, rows)


IDS = [
    [100, 55, 55, 60],
    [-7, 60, 55, PADDING],
    [BIG.max - 1, OUT_OF_RANGE, PADDING, PADDING],
    [BIG.max, BIG.min, 61, OUT_OF_RANGE],
    [MISSING, MISSING, 12345, MISSING],
]


@pytest.mark.parametrize("keys_kept", [7, 4, 0])
def test_keys_find_their_rows_and_all_others_the_default_of_their_table(
    spec: FeatureSpec, contents: TableContents, keys_kept: int
) -> None:
    rows, tables = served(spec, contents, max_bytes=2 * 12 + keys_kept * (8 + 12))
    assert len(rows.kept) == keys_kept

    columns = {name: values.numpy() for name, values in tables.values(tf.constant(IDS, tf.int64), spec).columns().items()}

    for i, (user, item, *history) in enumerate(IDS):
        np.testing.assert_array_equal(columns["user"][i], expected(contents, 0, user, rows.kept))
        np.testing.assert_array_equal(columns["item"][i], expected(contents, 1, item, rows.kept))
        items = [expected(contents, 1, key, rows.kept) for key in history if key != PADDING]
        np.testing.assert_allclose(columns["history"][i], sum(items, np.zeros(WIDTH)), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2.0**-8), ("int8", 0.5001 / 127)])
def test_rounded_rows_and_defaults(spec: FeatureSpec, contents: TableContents, dtype: str, tolerance: float) -> None:
    rows, tables = served(spec, contents, dtype)

    columns = tables.values(tf.constant(IDS, tf.int64), spec).columns()

    for i, (user, *_) in enumerate(IDS):
        row = expected(contents, 0, user, rows.kept)
        np.testing.assert_allclose(columns["user"][i].numpy(), row, rtol=0, atol=tolerance * np.abs(row).max())
    stored = {variable.dtype for variable in tables.variables if variable.shape.rank == 2 and variable.shape[1] == WIDTH}
    assert stored == {tf.as_dtype(dtype)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_static_tables_take_the_key_modulo_their_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_tables, "CHUNK_BYTES", 4 * WIDTH * 5)  # 16 rows in four chunks
    columns = {name: {"dimension": WIDTH, "rows": rows} for name, rows in (("user", 10), ("item", 6))}
    spec = parse_spec({**SPEC, "categorical": columns, "lists": {}})
    rows = np.repeat(np.arange(16, dtype=np.float32)[:, None], WIDTH, axis=1)
    contents = StaticContents(name="embedding-3", width=WIDTH, rows=16, read=lambda positions: rows[positions])

    _, tables = served(spec, contents, dtype)
    columns = tables.values(tf.constant([[13, 4], [-1, 6]], tf.int64), spec).columns()

    np.testing.assert_allclose(columns["user"][:, 0].numpy(), [3, 9], rtol=1e-6)
    np.testing.assert_allclose(columns["item"][:, 0].numpy(), [14, 10], rtol=1e-6)
    assert tables.keys is None


def test_tables_in_another_order_than_the_layouts_are_a_bug(spec: FeatureSpec, contents: TableContents) -> None:
    with pytest.raises(AssertionError):
        served(spec, dataclasses.replace(contents, tables=("item", "user")))
