"""What ingest packs is what the served model's graph makes of the same texts: no skew between training and serving."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paraserve.components import storage
from paraserve.components.features.graph import raw_to_matrices
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.ingest.checks import DENSE_INFINITE, DENSE_NO_NUMBER, Checked, Checker
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.job import ingest
from paraserve.components.ingest.packing import Packer
from paraserve.components.ingest.readers import NOT_UTF8, Rows
from paraserve.components.ingest.sample import FILE
from paraserve.components.manifest import read_manifest
from paraserve.components.records import Block, Layout, read_shard

SPEC = parse_spec(
    {
        "label": {"column": "y", "positive_at_least": 1},
        "missing_values": ["NA", "?", "a|b", " padded "],
        "dense": {"price": {}},
        "categorical": {
            "city": {"dimension": 2, "rows": 4},
            "kind": {"dimension": 2, "rows": 4, "values": ["x", "å", "NA"]},
            "home": {"dimension": 2, "rows": 4, "table": "city"},
        },
        "lists": {
            "tags": {"dimension": 2, "rows": 4, "max_length": 3},
            "words": {"dimension": 2, "rows": 4, "separator": ", ", "values": ["x", "y"], "max_length": 2},
            "seen": {"dimension": 2, "rows": 4, "table": "city", "separator": " "},
        },
    }
)

# Texts at random, drawn towards the characters that mean something here.
any_character = st.characters(exclude_categories=["Cs"], exclude_characters=NOT_UTF8)
meaningful = st.sampled_from([*" \t\n\v\f\r|,?xyå0", "NA", "a|b", ", ", "\x1f", "\x00", "\x1c", "\u00a0", "日本"])
texts = st.lists(meaningful | any_character, max_size=8).map("".join)
numbers = (
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.integers(-(10**30), 10**30).map(str)
    | st.integers(0, 2**80).map(hex)
    | st.sampled_from(
        [
            "",
            "NA",
            " 5 ",
            "+5",
            "1.",
            ".5",
            "-.5e-3",
            "1E5",
            "-0",
            "00012",
            "1e-400",
            "1e-45",
            "1.1754943e-38",
            "3.4028236e38",
            "1e39",
        ]
    )
    | st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
)
rows_of_texts = st.fixed_dictionaries(
    dict.fromkeys(("city", "kind", "home", "tags", "words", "seen"), texts) | {"price": numbers}
)


@tf.function(
    input_signature=[{f.name: tf.TensorSpec([None], tf.string) for f in SPEC.features}],
)
def graph(raw):  # type: ignore[no-untyped-def]
    return raw_to_matrices(SPEC, raw)


def checked(spec: FeatureSpec, rows: list[dict[str, str]]) -> Checked:
    count = np.arange(len(rows))
    batch = {name: pa.array([row[name] for row in rows], pa.string()) for name in spec.columns}
    return Checker(spec, with_time=False).check(
        Rows(place="f", texts=batch, lines=count + 2, index=count, malformed=(), blank_lines=0, end=len(rows))
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(rows_of_texts, min_size=1, max_size=8))
def test_ingest_and_graph_agree(rows: list[dict[str, str]]) -> None:
    good = checked(SPEC, [{**row, "y": "1"} for row in rows])
    bad = {row.line - 2: row.reasons for row in good.bad}
    assert {reason for reasons in bad.values() for reason in reasons} <= {f"{DENSE_INFINITE}: price"}
    block = Packer(SPEC).pack(good).block
    ids, dense = graph({f.name: tf.constant([row[f.name].encode() for row in rows]) for f in SPEC.features})
    kept = [i for i in range(len(rows)) if i not in bad]
    np.testing.assert_array_equal(block.id_matrix(Layout.of(SPEC)), ids.numpy()[kept])
    np.testing.assert_array_equal(block.dense, dense.numpy()[kept])
    assert np.isinf(dense.numpy()[list(bad)]).all()


def graph_takes(text: str) -> bool:
    row = {f.name: tf.constant([text if f.name == "price" else ""]) for f in SPEC.features}
    try:
        graph(row)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def reasons_of(text: str) -> tuple[str, ...]:
    row = dict.fromkeys(SPEC.columns, "") | {"y": "1", "price": text}
    return tuple(reason for bad in checked(SPEC, [row]).bad for reason in bad.reasons)


@settings(max_examples=150, deadline=None)
@given(
    st.from_regex(r"[+\-]?[0-9a-fxXeE._ ]{1,6}", fullmatch=True)
    | texts
    | st.sampled_from(["1_000", "1,5", "--1", "+ 5", "1e", ".", "0x", "e5", "1f", "1d5", "٣", "5\x00", "\u00a05", "1 2"])
)
def test_a_text_is_a_number_to_both_or_to_neither(text: str) -> None:
    assert (reasons_of(text) != (f"{DENSE_NO_NUMBER}: price",)) == graph_takes(text)


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "+INF", "Infinity"])
def test_names_of_what_is_no_finite_number_are_no_numbers(text: str) -> None:
    assert reasons_of(text) == (f"{DENSE_NO_NUMBER}: price",)
    assert not graph_takes(text)


@pytest.mark.parametrize(
    ("text", "kept"), [("3.4028235e38", True), ("3.4028236e38", False), ("1e400", False), ("0x1" + "0" * 300, False)]
)
def test_what_float32_cannot_hold_is_infinite(text: str, kept: bool) -> None:
    assert reasons_of(text) == (() if kept else (f"{DENSE_INFINITE}: price",))


def test_the_raw_sample_gives_the_eval_rows_again(tmp_path: Path) -> None:
    header = "y\tprice\tcity\tkind\thome\ttags\twords\tseen\n"
    lines = [f"{i % 2}\t{i / 7}\t c{i} \t{'xå'[i % 2]}\tNA\ta|{i}||b\tx, z\tc{i} c1\n" for i in range(300)]
    (tmp_path / "data.tsv").write_text(header + "".join(lines))
    config = IngestConfig(
        data=str(tmp_path / "data.tsv"),
        feature_spec=json.dumps(SPEC.source, indent=1),
        shards=str(tmp_path / "shards"),
        shard_rows=20,
        eval_fraction=0.3,
        raw_sample_rows=50,
    )
    place = ingest(config, str(tmp_path / "report"))
    manifest = read_manifest(place)
    shards = [read_shard(Path(place) / s.file, manifest.layout) for s in manifest.splits["eval"].shards]
    block = Block.concatenate(shards).rows(0, 50)
    sample = [json.loads(line) for line in gzip.decompress(storage.read_bytes(f"{place}/{FILE}")).splitlines()]
    ids, dense = graph({f.name: tf.constant([row[f.name].encode() for row in sample]) for f in SPEC.features})
    assert manifest.raw_sample == {"file": FILE, "rows": 50}
    assert sample[0]["city"].startswith("c")
    np.testing.assert_array_equal(block.id_matrix(manifest.layout), ids.numpy())
    np.testing.assert_array_equal(block.dense, dense.numpy())
