"""Tiny real models as train exports them, and a packed set's raw sample."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paraserve.components.features.spec import parse_spec
from paraserve.components.manifest import FILE, Manifest, Split

SPEC = {
    "label": {"column": "rating", "positive_at_least": 4},
    "dense": {"age": None},
    "categorical": {"user_id": {"dimension": 2, "rows": 16}},
    "lists": {"genres": {"dimension": 2, "rows": 16, "max_length": 3}},
}


def export_model(folder: Path, bias: float = 0.0, probability: float | None = None, warmup: bool = True) -> Path:
    """A SavedModel `folder`/1 whose probability depends on the age alone, or is always `probability`; returns `folder`."""
    import tensorflow as tf

    def score(age: Any) -> Any:
        return tf.sigmoid(bias + (age - 40) / 10) if probability is None else tf.fill(tf.shape(age), probability)

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, n) for n in ("user_id", "age", "genres")])
        def raw(self, user_id: Any, age: Any, genres: Any) -> dict[str, Any]:
            number = tf.strings.to_number(tf.where(age == "", "nan", age))
            return {"probability": score(tf.where(tf.math.is_nan(number), 40.0, number))}

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int64, "ids"), tf.TensorSpec([None, 1], tf.float32, "dense")])
        def matrices(self, ids: Any, dense: Any) -> dict[str, Any]:
            return {"probability": score(dense[:, 0])}

    model = Model()
    target = folder / "1"
    signatures = {"serving_default": model.raw.get_concrete_function(), "prehashed": model.matrices.get_concrete_function()}
    tf.saved_model.save(model, str(target), signatures=signatures)
    if warmup:
        write_warmup(target, {"user_id": "1", "age": "30", "genres": "Drama"})
    return folder


@pytest.fixture
def warmup_writer() -> Callable[[Path, dict[str, str]], None]:
    return write_warmup


def write_warmup(model_dir: Path, row: dict[str, str]) -> None:
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    log = prediction_log_pb2.PredictionLog()
    for name, value in row.items():
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto([value]))
    (model_dir / "assets.extra").mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(model_dir / "assets.extra" / "tf_serving_warmup_requests")) as writer:
        writer.write(log.SerializeToString())


def rows(count: int) -> list[dict[str, str]]:
    """Raw examples with ages from 18 to 77."""
    return [{"user_id": str(i), "age": str(18 + i % 60), "genres": "Drama|Comedy" if i % 3 else ""} for i in range(count)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefixes `good`, `better`, `constant`, `nan` and `broken`, each with one numeric folder."""
    folder = tmp_path_factory.mktemp("models")
    export_model(folder / "good")
    export_model(folder / "better", bias=0.2)
    export_model(folder / "constant", probability=0.5)
    export_model(folder / "nan", probability=float("nan"))
    broken = export_model(folder / "broken", warmup=False)
    (broken / "1" / "saved_model.pb").write_bytes(b"damaged")
    return folder


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A packed set without shards: deploying reads its raw sample alone."""
    folder = tmp_path_factory.mktemp("shards")
    with gzip.open(folder / "sample.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(200))
    manifest = Manifest(
        spec=parse_spec(SPEC),
        moments={},
        splits={name: Split(rows=0, positives=0, shards=()) for name in ("train", "eval", "test")},
        data_digest="0" * 64,
        source={},
        rows_read=200,
        rows_bad=0,
        bad_by_reason={},
        settings={},
        raw_sample={"file": "sample.jsonl.gz", "rows": 200},
    )
    (folder / FILE).write_bytes(manifest.to_json())
    return str(folder)
