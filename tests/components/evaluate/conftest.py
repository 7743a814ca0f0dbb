"""A tiny packed data set, and SavedModels made for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components import storage
from paraserve.components.exported import DESCRIPTION, Description
from paraserve.components.features import keys
from paraserve.components.features.graph import raw_to_matrices
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.manifest import Manifest, Shard, Split
from paraserve.components.records import Block, Layout, write_shard

GENDERS, CITIES, GENRES = ("F", "M", "X"), ("Bonn", "Köln", "Ulm & Süd"), ("drama", "noir", "war")


def spec_of(**changes: Any) -> FeatureSpec:
    source: dict[str, Any] = {
        "label": {"column": "click", "positive_at_least": 1},
        "dense": {"age": {}, "price": {}},
        "categorical": {"gender": {"dimension": 2, "rows": 8}, "city": {"dimension": 2, "rows": 8}},
        "lists": {"genres": {"dimension": 2, "rows": 8, "max_length": 3}},
    }
    return parse_spec(source | changes)


REORDERED = spec_of(
    dense={"price": {}, "age": {}},
    categorical={"city": {"dimension": 2, "rows": 8}, "gender": {"dimension": 4, "rows": 16}},
    lists={"genres": {"dimension": 2, "rows": 8, "max_length": 2}},
)
"""The same columns in another order, with other tables, and a shorter list."""


@dataclass(frozen=True)
class Data:
    """A packed data set with its test split in memory."""

    shards: str
    spec: FeatureSpec
    test: Block


def make_block(n: int, seed: int) -> Block:
    random = np.random.default_rng(seed)
    gender, city = random.integers(0, 3, n), random.integers(0, 3, n)
    lengths = random.integers(0, 4, n).astype(np.int32)
    dense = random.normal(size=(n, 2)).astype(np.float32)
    logit = 1.5 * dense[:, 0] + (gender == 1) - 0.5
    labels = (random.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    dense[:3, 1] = np.nan
    ids = np.stack([keys.keys_of("gender", GENDERS)[gender], keys.keys_of("city", CITIES)[city]], axis=1)
    ids[0, 0] = keys.MISSING
    items = keys.keys_of("genres", GENRES)[random.integers(0, 3, int(lengths.sum()))]
    return Block(labels=labels, dense=dense, ids=ids, lists=((lengths, items),))


def write_data(place: str, folder: Path, spec: FeatureSpec, blocks: list[Block]) -> Data:
    """Writes a data set whose test split is `blocks`, one shard each."""
    shards = []
    for i, block in enumerate(blocks):
        file = f"test-{i:05d}.rec"
        write_shard(folder / file, block, Layout.of(spec))
        content = (folder / file).read_bytes()
        storage.write_bytes(storage.join(place, file), content)
        shards.append(Shard(file=file, rows=len(block), bytes=len(content), sha256=storage.sha256_of(folder / file)))
    test = Block.concatenate(blocks)
    none = Split(rows=0, positives=0, shards=())
    manifest = Manifest(
        spec=spec,
        moments={},
        splits={
            "train": none,
            "eval": none,
            "test": Split(rows=len(test), positives=int(test.labels.sum()), shards=tuple(shards)),
        },
        data_digest="d" * 64,
        source={"pattern": "clicks.csv", "files": [{"place": "clicks.csv", "size": 1}]},
        rows_read=len(test),
        rows_bad=0,
        bad_by_reason={},
        settings={"split_seed": 7},
        raw_sample={"file": "sample.jsonl.gz", "rows": 0},
    )
    storage.write_bytes(storage.join(place, "manifest.json"), manifest.to_json())
    tops = {"gender": GENDERS, "city": CITIES}
    top = {c: [{"value": v, "key": int(keys.key_of(c, v)), "count": 1} for v in values] for c, values in tops.items()}
    statistics = {"categorical": {column: {"top": entries} for column, entries in top.items()}}
    storage.write_bytes(storage.join(place, "statistics.json"), json.dumps(statistics).encode())
    return Data(place, spec, test)


class TinyModel(tf.Module):
    """sigmoid(a * age + b * [gender is M] + c * [noir among the last two genres] + bias), whatever the spec's order."""

    def __init__(self, spec: FeatureSpec, weights: Mapping[str, float]):
        super().__init__()
        self.spec = spec
        self.weights = {name: tf.Variable(float(value)) for name, value in weights.items()}
        self.width, self.columns = spec.id_width, [column.name for column in spec.dense]

    def logit(self, ids: tf.Tensor, dense: tf.Tensor) -> tf.Tensor:
        gender = ids[:, self.spec.id_slices["gender"].start]
        genres = ids[:, self.spec.id_slices["genres"]]
        lengths = tf.reduce_sum(tf.cast(genres != keys.PADDING, tf.int32), axis=1)
        position = tf.range(tf.shape(genres)[1])[None, :]
        newest = (position < lengths[:, None]) & (position >= lengths[:, None] - 2)
        noir = tf.reduce_any((genres == keys.key_of("genres", "noir")) & newest, axis=1)
        is_m = tf.cast(gender == keys.key_of("gender", "M"), tf.float32)
        age = dense[:, self.columns.index("age")]
        w = self.weights
        return w["age"] * age + w["gender"] * is_m + w["noir"] * tf.cast(noir, tf.float32) + w["bias"]

    def signatures(self) -> dict[str, Any]:
        inputs = {f.name: tf.TensorSpec([None], tf.string, name=f.name) for f in self.spec.features}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, self.spec.id_width], tf.int64, name="ids"),
                tf.TensorSpec([None, len(self.spec.dense)], tf.float32, name="dense"),
            ]
        )
        def prehashed(ids: tf.Tensor, dense: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"probability": self.probability(self.logit(ids, dense))}

        @tf.function(input_signature=[inputs])
        def raw(values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {"probability": self.probability(self.logit(*raw_to_matrices(self.spec, values)))}

        return {"serving_default": raw, "prehashed": prehashed}

    def probability(self, logit: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(logit)


class LogitModel(TinyModel):
    """Forgot its sigmoid."""

    def probability(self, logit: tf.Tensor) -> tf.Tensor:
        return logit


GOOD = {"age": 1.5, "gender": 1.0, "noir": 0.2, "bias": -0.5}
USELESS = {"age": 0.0, "gender": 0.0, "noir": 0.0, "bias": 0.0}


def export_model(
    folder: Path, spec: FeatureSpec, weights: Mapping[str, float], run_id: str = "run-1", kind: type[TinyModel] = TinyModel
) -> Path:
    model = kind(spec, weights)
    tf.saved_model.save(model, str(folder), signatures=model.signatures())
    description = Description(
        spec=spec,
        moments={},
        data_digest="t" * 64,
        training={"epochs": 3},
        versions={"tensorflow": tf.__version__},
        run_id=run_id,
    )
    storage.write_bytes(str(folder / DESCRIPTION), description.to_json())
    return folder


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """What this file defines, for tests that make data or models of their own."""
    return SimpleNamespace(
        spec_of=spec_of,
        make_block=make_block,
        write_data=write_data,
        export_model=export_model,
        GOOD=GOOD,
        USELESS=USELESS,
        REORDERED=REORDERED,
        LogitModel=LogitModel,
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """1,000 test examples in two shards."""
    folder = tmp_path_factory.mktemp("shards")
    return write_data(str(folder), folder, spec_of(), [make_block(700, 1), make_block(300, 2)])


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("good") / "model", spec_of(), GOOD)


@pytest.fixture(scope="session")
def useless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("useless") / "model", spec_of(), USELESS, "run-2")


@pytest.fixture(scope="session")
def reordered_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("reordered") / "model", REORDERED, GOOD, "run-3")
