"""The exported model: a SavedModel that hashes and transforms by itself, from core TensorFlow ops only. See `exported`."""

import importlib.metadata
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from paraserve.components import exported
from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY, RAW_SIGNATURE, Description
from paraserve.components.features.graph import raw_to_matrices, transform_dense
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import Manifest
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.layout import GroupLayout, model_inputs
from paraserve.components.train.serving_budget import ServedRows, choose_rows
from paraserve.components.train.serving_tables import ServedTables

PACKAGES = ("kfp", "numpy", "paraserve", "tensorflow", "tf-keras")


class Trained(Protocol):
    """What a training came to: all that an export needs of a trainer."""

    @property
    def config(self) -> TrainConfig: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def linear(self) -> bool:
        """Whether the model wants a linear weight per value, a row's last number."""

    @property
    def layouts(self) -> Sequence[GroupLayout]: ...

    def contents(self) -> Sequence[StaticContents | TableContents]:
        """What the tables hold, in the order of the layouts."""

    def local_model(self) -> tf_keras.Model:
        """The model on this machine, with the current weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A written export."""

    folder: Path
    """Of the SavedModel."""
    rows: tuple[ServedRows, ...]
    """For each layout what the model holds of its tables."""
    bytes: int
    """Of the rows, their keys, the defaults and the dense weights."""

    @property
    def whole(self) -> bool:
        """Whether it answers exactly as the trainer: all rows are there, in float32."""
        return all(rows.whole for rows in self.rows)


class ServedModel(tf.Module):
    """The trained model with its tables, on this machine alone."""

    def __init__(self, trained: Trained, model: tf_keras.Model, rows: Sequence[ServedRows]):
        super().__init__()
        self._manifest, self._spec, self._linear = trained.manifest, trained.manifest.spec, trained.linear
        # Only the weights are tracked: a Keras object would be saved as one, with code that nobody loads.
        self.weights = list(model.variables)
        self._call = lambda inputs: model(inputs, training=False)
        self.tables = [ServedTables(layout, part) for layout, part in zip(trained.layouts, rows, strict=True)]
        width, n_dense = self._spec.id_width, len(self._spec.dense)
        self.prehashed = tf.function(
            self._prehashed,
            input_signature=[tf.TensorSpec([None, width], tf.int64, IDS), tf.TensorSpec([None, n_dense], tf.float32, DENSE)],
        )

    def signatures(self) -> dict[str, tf.types.experimental.GenericFunction]:
        """What a server offers."""
        raw = {feature.name: tf.TensorSpec([None], tf.string, feature.name) for feature in self._spec.features}
        return {RAW_SIGNATURE: tf.function(self._raw).get_concrete_function(**raw), MATRIX_SIGNATURE: self.prehashed}

    def _prehashed(self, ids: tf.Tensor, dense: tf.Tensor) -> dict[str, tf.Tensor]:
        columns: dict[str, tf.Tensor] = {}
        for tables in self.tables:
            columns |= tables.values(ids, self._spec).columns()
        numbers = transform_dense(self._spec, self._manifest.moments, dense)
        logits = self._call(model_inputs(self._spec, numbers, columns, self._linear))
        return {PROBABILITY: tf.sigmoid(tf.cast(logits[:, 0], tf.float32))}

    def _raw(self, **raw: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._prehashed(*raw_to_matrices(self._spec, raw))


def check_budget(trained: Trained) -> None:
    """Raises ValueError, before anything is trained, when `serving_max_bytes` has no room for what every export holds."""
    choose(trained, trained.local_model())


def choose(trained: Trained, model: tf_keras.Model) -> tuple[ServedRows, ...]:
    """What an export holds of each group of tables. Raises ValueError as `choose_rows` does."""
    config = trained.config
    return choose_rows(
        trained.contents(), trained.linear, config.serving_dtype, config.serving_max_bytes, dense_bytes=_dense_bytes(model)
    )


def export(trained: Trained, target: Path, run_id: str) -> Exported:
    """Writes what was trained as a SavedModel to `target`, which appears when it is whole; an older one is replaced.

    It holds the rows that fit `serving_max_bytes`, the most frequent keys first, in `serving_dtype`. Raises ValueError as
    `choose_rows` does.
    """
    model = trained.local_model()
    rows = choose(trained, model)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        served = ServedModel(trained, model, rows)
        tf.saved_model.save(served, str(temporary), served.signatures())
        (temporary / exported.DESCRIPTION).parent.mkdir(exist_ok=True)
        (temporary / exported.DESCRIPTION).write_bytes(_description(trained, run_id).to_json())
        _write_warmup(trained.manifest.spec, temporary / exported.WARMUP)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(folder=target, rows=rows, bytes=_dense_bytes(model) + sum(part.bytes for part in rows))


def _dense_bytes(model: tf_keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) * int(variable.dtype.size) for variable in model.variables)


def _description(trained: Trained, run_id: str) -> Description:
    return Description(
        spec=trained.manifest.spec,
        moments=trained.manifest.moments,
        data_digest=trained.manifest.data_digest,
        training=trained.config.settings(),
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        run_id=run_id,
    )


def _write_warmup(spec: FeatureSpec, path: Path) -> None:
    """One request for each signature, all values missing: TensorFlow Serving runs them before it says "available"
    (https://www.tensorflow.org/tfx/serving/saved_model_warmup).
    """
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    inputs = {
        RAW_SIGNATURE: {feature.name: tf.constant([""]) for feature in spec.features},
        MATRIX_SIGNATURE: {
            IDS: tf.zeros([1, spec.id_width], tf.int64),
            DENSE: tf.fill([1, len(spec.dense)], np.float32("nan")),
        },
    }
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, tensors in inputs.items():
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            for name, tensor in tensors.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())
