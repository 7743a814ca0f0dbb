"""From a batch's ids to places in tables, and from rows to what a model is called with."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components.features import keys
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.train.embedding.layout import GroupLayout, Places
from paraserve.components.train.embedding.reserved import own_key

MIXED = {
    "categorical": {"user": {"rows": 7}, "item": {"rows": 5}},
    "lists": {"history": {"table": "item", "rows": 5, "max_length": 3, "pooling": "sum"}, "tags": {"rows": 3, "max_length": 2}},
}
LISTS = {"lists": MIXED["lists"] | {"history": {"rows": 5, "max_length": 3}}}
ONE_LIST = {"lists": {"tags": {"rows": 3, "max_length": 2}}}
ONE = {"categorical": {"user": {"rows": 7}}}
NONE = keys.PADDING


def spec_of(columns: dict[str, Any]) -> FeatureSpec:
    sized = {kind: {name: {"dimension": 2, **column} for name, column in part.items()} for kind, part in columns.items()}
    return parse_spec({"label": {"column": "click", "positive_at_least": 1}, "dense": {"price": {}}, **sized})


def layout_of(spec: FeatureSpec) -> GroupLayout:
    (layout,) = GroupLayout.all_of(spec, linear=False)
    return layout


def some_ids(spec: FeatureSpec, examples: int, seed: int = 0) -> np.ndarray:
    """Random keys, few of them distinct, lists of all lengths."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(100, 112, [examples, spec.id_width])
    for column in spec.lists:
        block = ids[:, spec.id_slices[column.name]]
        block[np.arange(column.max_length) >= rng.integers(0, column.max_length + 1, examples)[:, None]] = NONE
    return ids


def by_hand(spec: FeatureSpec, ids: np.ndarray) -> list[tuple[str, int]]:
    """The column and key of each place, in order."""
    wanted = []
    for column in spec.embedded:
        for row in ids[:, spec.id_slices[column.name]]:
            wanted += [(column.name, int(key)) for key in row if key != NONE]
    return wanted


@pytest.mark.parametrize("columns", [MIXED, LISTS, ONE_LIST, ONE])
@pytest.mark.parametrize("examples", [0, 1, 9])
def test_each_place_has_the_row_of_its_table(columns: dict[str, Any], examples: int) -> None:
    spec = spec_of(columns)
    layout, ids = layout_of(spec), some_ids(spec, examples)

    places = layout.places(tf.constant(ids), spec)

    table_of = {column.name: column.table for column in spec.embedded}
    expected = [layout.offsets[table_of[name]] + key % spec.tables[table_of[name]].rows for name, key in by_hand(spec, ids)]
    np.testing.assert_array_equal(places.numbers, expected)
    numbers = {table.name: number for number, table in enumerate(layout.tables)}
    tables = [numbers[table_of[name]] for name, _ in by_hand(spec, ids)]
    np.testing.assert_array_equal(places.tables(), tables)
    check_tables_of_rows(places, tables)


def check_tables_of_rows(places: Places, tables: list[int]) -> None:
    rows, index = tf.unique(places.numbers)
    expected = np.zeros(len(rows), np.int32)
    expected[index.numpy()] = tables
    np.testing.assert_array_equal(places.tables_of_rows(index), expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("empty", [["tags"], ["history"], ["history", "tags"]])
def test_columns_without_any_place_have_no_rows(empty: list[str], seed: int) -> None:
    for columns in (MIXED, LISTS):
        spec = spec_of(columns)
        ids = some_ids(spec, 9, seed)
        for name in empty:
            ids[:, spec.id_slices[name]] = NONE
        places = layout_of(spec).places(tf.constant(ids), spec)

        check_tables_of_rows(places, places.tables().numpy().tolist())


def test_reserved_keys_are_each_tables_own_where_tables_are_dynamic() -> None:
    spec = spec_of({"categorical": {"user": {"max_keys": 9}, "item": {"max_keys": 9}}})
    ids = tf.constant([[keys.MISSING, keys.OUT_OF_RANGE], [77, keys.MISSING]], tf.int64)

    numbers = layout_of(spec).places(ids, spec).numbers.numpy().tolist()

    assert numbers == [own_key("user", keys.MISSING), 77, own_key("item", keys.OUT_OF_RANGE), own_key("item", keys.MISSING)]


@pytest.mark.parametrize("columns", [MIXED, LISTS, ONE])
def test_a_batch_within_an_exchange_has_its_own_places(columns: dict[str, Any]) -> None:
    spec = spec_of(columns)
    layout, ids = layout_of(spec), some_ids(spec, 9)
    places = layout.places(tf.constant(ids), spec)
    rows, index = tf.unique(places.numbers)

    for start, stop in ((0, 4), (4, 9), (9, 9)):
        part = places.indexed(index).between(tf.constant(start), tf.constant(stop))
        alone = layout.places(tf.constant(ids[start:stop]), spec)

        np.testing.assert_array_equal(tf.gather(rows, part.flat()), alone.numbers)
        for segments, expected in zip(part.segments, alone.segments, strict=True):
            np.testing.assert_array_equal(segments, expected)


def test_rows_of_a_list_are_pooled_and_gradients_return_to_places() -> None:
    spec = spec_of(MIXED)
    layout = layout_of(spec)
    ids = tf.constant([[100, 101, 7, 8, NONE, 5, 6], [102, 103, NONE, NONE, NONE, 5, NONE]], tf.int64)
    places = layout.places(ids, spec)
    table = tf.reshape(tf.range(2.0 * layout.rows), [-1, 2])

    with tf.GradientTape() as tape:
        values = places.indexed(tf.cast(places.numbers, tf.int32)).values(lambda index: tf.gather(table, index))
        tape.watch(values.values)
        columns = values.columns()
        loss = tf.reduce_sum(columns["tags"] * [[1.0], [10.0]]) + 3 * tf.reduce_sum(columns["item"])

    row = dict(zip(by_hand(spec, ids.numpy()), tf.gather(table, places.numbers).numpy(), strict=True))
    np.testing.assert_allclose(columns["user"], [row["user", 100], row["user", 102]])
    np.testing.assert_allclose(columns["history"], [row["history", 7] + row["history", 8], [0, 0]])
    np.testing.assert_allclose(columns["tags"], [(row["tags", 5] + row["tags", 6]) / 2, row["tags", 5]])
    indexed = places.indexed(tf.cast(places.numbers, tf.int32))
    gradients = tape.gradient(loss, values.values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    gradient = indexed.flat_gradient(gradients).numpy()
    # user, user, item, item, history twice, tags twice and once
    expected = np.array([0, 0, 3, 3, 0, 0, 0.5, 0.5, 10])
    np.testing.assert_allclose(gradient, np.stack([expected, expected], axis=1))
