"""The key contract, the feature spec and the transforms."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paraserve.components.features import graph, keys
from paraserve.components.features.spec import FeatureSpec, load_spec, parse_spec
from paraserve.components.features.transforms import (
    Clip,
    Log1p,
    Moments,
    Standardise,
    apply_transforms,
    before_standardise,
    moments_from_json,
    moments_to_json,
    parse_transforms,
)

# --- keys ---------------------------------------------------------------------------------------------------------------

GOLDEN = [
    ("user_id", "196", -3826355932555496921),
    ("user_id", "", 8041180961619057281),
    ("item_id", "196", -4702273119058138158),
    ("city", "Zürich", -700204765288384479),
    ("city", "日本", 8318789540851047603),
    ("genres", "Children's", -6862440505562250349),
    ("query", "a b\tc", -781753420061643355),
    ("c", "\x00", 658064212060432248),
    ("c", "x" * 20, 447657716525859334),
    ("c", "y" * 50, 5155444732638480030),
    ("c", "a" * 100, 1793148414297378334),
]
"""Never change these: stored shards and models hold such keys."""


@pytest.mark.parametrize(("salt", "text", "key"), GOLDEN)
def test_the_key_contract(salt: str, text: str, key: int) -> None:
    assert keys.key_of(salt, text) == key
    assert keys.keys_of(salt, [text, text]).tolist() == [key, key]
    fingerprint = tf.raw_ops.Fingerprint(data=[f"{salt}\x1f{text}"], method="farmhash64")
    assert tf.bitcast(fingerprint, tf.int64).numpy()[0] == key


def test_reserved_keys() -> None:
    assert (keys.MISSING, keys.OUT_OF_RANGE, keys.PADDING, keys.RESERVED, keys.SEPARATOR) == (0, 1, 2, 16, "\x1f")


@pytest.mark.parametrize(
    ("fingerprint", "key"), [(0, 16), (15, 31), (16, 16), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_fingerprints_on_reserved_keys_move_up(monkeypatch: pytest.MonkeyPatch, fingerprint: int, key: int) -> None:
    # No text is known whose fingerprint is below 16: 2**60 tries would find one.
    monkeypatch.setattr("farmhash.fingerprint64", lambda text: fingerprint)
    assert keys.key_of("c", "x") == key


# --- spec ---------------------------------------------------------------------------------------------------------------

SPEC = """
label: {column: rating, positive_at_least: 4}
time: timestamp
missing_values: ["NA", 0]
dense:
  age: {transforms: [log1p, {clip: [0, 5]}, standardise]}
  year: {column: release_year}
  plain:
categorical:
  user_id: {dimension: 16, rows: 1000}
  gender: {dimension: 4, rows: 8, values: [M, F]}
lists:
  genres: {dimension: 8, rows: 64, separator: ",", pooling: sum, max_length: 20}
  history: {dimension: 16, rows: 1000, table: user_id}
"""


def test_a_spec_says_what_it_says() -> None:
    spec = load_spec(SPEC)
    assert spec.columns == ("rating", "timestamp", "age", "release_year", "plain", "user_id", "gender", "genres", "history")
    assert spec.missing_values == ("", "NA", "0")
    assert [column.transforms for column in spec.dense] == [(Log1p(), Clip(0, 5), Standardise()), (), ()]
    assert [c.name for c in spec.embedded] == ["user_id", "gender", "genres", "history"]
    assert spec.categorical[1].values == ("M", "F")
    assert (spec.lists[0].separator, spec.lists[0].pooling, spec.lists[0].max_length) == (",", "sum", 20)
    assert (spec.lists[1].separator, spec.lists[1].pooling, spec.lists[1].max_length) == ("|", "mean", 50)
    assert spec.id_slices == {"user_id": slice(0, 1), "gender": slice(1, 2), "genres": slice(2, 22), "history": slice(22, 72)}
    assert spec.id_width == 72
    assert {name: (t.dimension, t.rows) for name, t in spec.tables.items()} == {
        "user_id": (16, 1000),
        "gender": (4, 8),
        "genres": (8, 64),
    }


def test_a_spec_from_a_file_and_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    spec = load_spec(str(tmp_path / "spec.yaml"))
    assert spec == load_spec(SPEC) == parse_spec(spec.source)
    with pytest.raises(FileNotFoundError):
        load_spec(str(tmp_path / "none.yaml"))


def test_the_digest_is_of_the_meaning() -> None:
    source = yaml.safe_load(SPEC)
    digest = parse_spec(source).digest
    reordered = yaml.safe_load(yaml.safe_dump(source, sort_keys=True, default_flow_style=True))
    reordered["dense"] = {name: reordered["dense"][name] for name in source["dense"]}
    reordered["categorical"] = {name: reordered["categorical"][name] for name in source["categorical"]}
    assert parse_spec(reordered).digest == digest
    for path, value in [
        (("label", "positive_at_least"), 3),
        (("dense", "age", "transforms"), ["log1p", {"clip": [0, 6]}, "standardise"]),
        (("categorical", "gender", "values"), ["M"]),
        (("lists", "genres", "pooling"), "mean"),
        (("missing_values",), []),
        (("time",), "other"),
    ]:
        changed = yaml.safe_load(SPEC)
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        assert parse_spec(changed).digest != digest, path


LABEL = "label: {column: y, positive_at_least: 1}\n"


def test_a_spec_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_bytes(b"label: \xff")

    with pytest.raises(ValueError, match=r"the feature spec .*spec\.yaml: 'utf-8' codec can't decode"):
        load_spec(str(tmp_path / "spec.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "no feature spec was given"),
        ("- a\n- b", "the spec is .*must be a mapping"),
        ("label: [\n", "the feature spec: "),
        ("dense: {x: }\n\n# no label", r"`label` is missing \(there is `dense`\); add it"),
        ("label: y\ndense: {x: }", "label is 'y'; it must be a mapping"),
        ("label: {column: y}\ndense: {x: }", "give either `positive_at_least` or `positive_values`"),
        ("label: {column: y, positive_at_least: 1, positive_values: [a]}\ndense: {x: }", "and only one"),
        ("label: {column: y, positive_values: []}\ndense: {x: }", "`positive_values` is empty"),
        ("label: {column: y, positive_values: yes}\ndense: {x: }", "`positive_values` is True; give a list of texts"),
        ("label: {column: y, positive_values: [yes]}\ndense: {x: }", "in quotes where YAML"),
        ("label: {column: y, positive_at_least: true}\ndense: {x: }", "`positive_at_least` is True; give a number"),
        ("label: {column: 3, positive_at_least: 1}\ndense: {x: }", "`label column` is 3; give a text"),
        ("label: {column: y, positive_at_least: 1, above: 2}\ndense: {x: }", "label: unknown entry `above`; known are"),
        (LABEL + "time: 3\ndense: {x: }", "`time` is 3"),
        (LABEL, "the spec has no features"),
        (LABEL + "features: {x: }", "unknown entry `features`; known are label, time"),
        (LABEL + "dense: [x]", r"`dense` is \['x'\]; it must be a mapping"),
        (LABEL + "dense: {x: 3}", "dense feature 'x' is 3; it must be a mapping"),
        (LABEL + "dense: {x: {transforms: log1p}}", "`transforms` is 'log1p'; it must be a list"),
        (LABEL + "dense: {x: {transforms: [sqrt]}}", "column 'x': unknown transform 'sqrt'; use log1p, standardise or"),
        (LABEL + "dense: {x: {transforms: [{clip: [1]}]}}", "unknown transform"),
        (LABEL + "dense: {x: {transforms: [{clip: [2, 1]}]}}", r"two finite numbers, the lower first; got \[2\.0, 1\.0\]"),
        (LABEL + "dense: {x: {transforms: [{clip: [0, .inf]}]}}", "two finite numbers"),
        (LABEL + "dense: {x: {transforms: [standardise, log1p, standardise]}}", "`standardise` stands twice"),
        (LABEL + "dense:\n  x:\n  x: {}", "'x' stands 2 times.*line 3.*; keep one"),
        (LABEL + "dense: {x: }\ncategorical: {x: {dimension: 1, rows: 1}}", "feature name 'x' stands 2 times"),
        (LABEL + "dense: {a b: }", "feature name 'a b' is not usable in a model"),
        (LABEL + "dense: {y: }", "feature 'y' reads the label's column 'y'"),
        (LABEL + "dense: {x: {column: y}}", "the model would see the answer"),
        (
            LABEL + "categorical: {x: {rows: 1, dimensoin: 4}}",
            r"categorical feature 'x': `dimension` is missing \(there is `rows`, `dimensoin`\); add it",
        ),
        (LABEL + "categorical: {x: {dimension: 0, rows: 1}}", "`dimension` is 0; give a whole number from 1 to 4096"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1.5}}", r"`rows` is 1\.5"),
        (LABEL + "categorical: {x: {dimension: true, rows: 1}}", "`dimension` is True"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1, values: []}}", "`values` is empty"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1, pooling: sum}}", "unknown entry `pooling`"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1, table: z}}", "its table 'z' is not a categorical or list column"),
        (
            LABEL + "categorical: {x: {dimension: 1, rows: 1}, z: {dimension: 2, rows: 1, table: x}}",
            "shares the table of 'x' but asks for dimension 2 against 1; make them equal",
        ),
        (LABEL + "categorical: {x: {dimension: 1}}", "column 'x' has no size; give either `rows`"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1, max_keys: 2}}", "has `rows` and `max_keys`; give either"),
        (LABEL + "categorical: {x: {dimension: 1, max_keys: 1, admit_after: 0}}", "`admit_after` is 0"),
        (LABEL + "categorical: {x: {dimension: 1, max_keys: 1, evict: fifo}}", "`evict` is 'fifo'; use one of none, lru"),
        (LABEL + "categorical: {x: {dimension: 1, max_keys: 1, evict: ttl}}", "`evict: ttl` and `ttl_steps` belong together"),
        (LABEL + "categorical: {x: {dimension: 1, rows: 1, evict: lru}}", "have no effect on a static table"),
        (
            LABEL + "categorical: {a: {dimension: 1, rows: 1, table: b}, b: {dimension: 1, rows: 1, table: a}}",
            "its table 'b' is not .* with a table of its own; name one of none",
        ),
        (LABEL + "lists: {x: {dimension: 1, rows: 1, pooling: max}}", "unknown pooling 'max'; use one of sum, mean"),
        (LABEL + "lists: {x: {dimension: 1, rows: 1, max_length: 0}}", "`max_length` is 0"),
        (LABEL + "lists: {x: {dimension: 1, rows: 1, separator: ''}}", "`separator` is ''"),
        (LABEL + "lists: {x: {dimension: 1, rows: 1, seperator: ','}}", "unknown entry `seperator`; known are .*separator"),
        (LABEL + "missing_values: NA\ndense: {x: }", "`missing_values` is 'NA'; give a list of texts"),
    ],
)
def test_a_spec_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        load_spec(text + "\n# a second line makes it inline\n" if text.strip() else text)


# --- transforms ---------------------------------------------------------------------------------------------------------

finite = st.floats(-(2.0**60), 2.0**60, width=32)
columns = arrays.arrays(np.float32, st.integers(0, 30), elements=finite | st.just(math.nan))


@given(st.lists(columns, min_size=1, max_size=5))
def test_moments_in_parts_are_those_of_the_whole(parts: list[np.ndarray]) -> None:
    merged = Moments(0, 0.0, 0.0)
    for part in parts:
        merged = merged.merged(Moments.of(part))
    whole = np.concatenate(parts).astype(np.float64)
    whole = whole[~np.isnan(whole)]
    assert merged.count == len(whole)
    if len(whole):
        scale = float(np.abs(whole).max())
        assert merged.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-9 * scale)
        assert merged.std == pytest.approx(whole.std(), rel=1e-6, abs=1e-7 * scale)


def test_moments_in_json() -> None:
    moments = {"a": Moments.of(np.array([1, 2, 4], np.float32))}
    assert moments_from_json(moments_to_json(moments)) == moments


def test_transforms_by_hand() -> None:
    x = np.array([-3, 0, np.e - 1, 100, np.nan], np.float32)
    np.testing.assert_allclose(apply_transforms(x, (Log1p(),), None)[[0, 1, 2, 4]], [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(apply_transforms(x, (Clip(-1, 5),), None)[[0, 3, 4]], [-1, 5, 0])
    standard = apply_transforms(np.array([1, 3, np.nan], np.float32), (Standardise(),), Moments(2, 2.0, 8.0))
    np.testing.assert_array_equal(standard, np.array([-0.5, 0.5, 0], np.float32))
    constant = apply_transforms(np.array([7], np.float32), (Standardise(),), Moments(9, 7.0, 0.0))
    np.testing.assert_array_equal(constant, [0])


def test_standardise_is_fitted_on_what_comes_before_it() -> None:
    x = np.array([0, 1, 50], np.float32)
    before = before_standardise(x, parse_transforms("x", [{"clip": [0, 10]}, "standardise", "log1p"]))
    assert before is not None
    assert before.tolist() == [0, 1, 10]
    assert before_standardise(x, (Log1p(),)) is None


transforms = st.permutations(["log1p", "standardise", {"clip": [-2, 3]}]).flatmap(
    lambda order: st.integers(0, 3).map(lambda count: order[:count])
)


@settings(deadline=None)
@given(columns, transforms)
def test_numpy_and_tensorflow_transform_alike(x: np.ndarray, entries: list[Any]) -> None:
    chain = parse_transforms("x", entries)
    before = before_standardise(x, chain)
    moments = Moments.of(before) if before is not None else None
    expected = apply_transforms(x, chain, moments)
    found = apply_transforms(tf.constant(x), chain, moments, graph.TENSORFLOW)
    assert found.dtype == tf.float32
    assert expected.dtype == np.float32
    assert np.isfinite(expected).all()
    # The logarithms of the two libraries may differ in the last bit, and standardising may then enlarge it.
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_transform_dense_takes_each_column_by_its_name() -> None:
    spec = parse_spec(
        {
            "label": {"column": "y", "positive_at_least": 1},
            "dense": {"a": {"transforms": ["standardise"]}, "b": {}, "c": {"transforms": [{"clip": [0, 1]}]}},
        }
    )
    dense = tf.constant([[4, 4, 4], [math.nan, math.nan, -1]], tf.float32)
    found = graph.transform_dense(spec, {"a": Moments(1, 2.0, 1.0)}, dense)
    assert found.numpy().tolist() == [[2, 4, 1], [0, 0, 0]]


# --- raw values in the graph --------------------------------------------------------------------------------------------


def raw(spec: FeatureSpec, **texts: list[str]) -> tuple[list[Any], list[Any]]:
    ids, dense = graph.raw_to_matrices(spec, {name: tf.constant(values) for name, values in texts.items()})
    return ids.numpy().tolist(), dense.numpy().tolist()


def test_raw_to_matrices_by_hand() -> None:
    spec = load_spec(
        LABEL
        + """
missing_values: [NA]
dense: {x: }
categorical: {c: {dimension: 1, rows: 1, values: [a]}, d: {dimension: 1, rows: 1, table: c}}
lists: {l: {dimension: 1, rows: 1, max_length: 3}}
"""
    )
    key = keys.key_of
    ids, dense = raw(spec, x=[" 1.5", "2"], c=["a ", "b"], d=["b", "NA"], l=["p|q||NA| r |s", ""])
    assert ids == [
        [key("c", "a"), key("c", "b"), key("l", "q"), key("l", "r"), key("l", "s")],
        [keys.OUT_OF_RANGE, keys.MISSING, keys.PADDING, keys.PADDING, keys.PADDING],
    ]
    assert dense == [[1.5], [2.0]]
    assert math.isnan(raw(spec, x=["NA"], c=["a"], d=["a"], l=["a"])[1][0][0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="the dense feature 'x' takes numbers as text"):
        raw(spec, x=["many"], c=["a"], d=["a"], l=["a"])


def test_a_spec_without_ids_or_without_numbers() -> None:
    ids, dense = raw(load_spec(LABEL + "dense: {x: }\n"), x=["1"])
    assert (ids, dense) == ([[]], [[1.0]])
    ids, dense = raw(load_spec(LABEL + "categorical: {c: {dimension: 1, rows: 1}}\n"), c=["1"])
    assert (ids, dense) == ([[keys.key_of("c", "1")]], [[]])
