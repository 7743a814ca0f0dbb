"""The exported model: a SavedModel that hashes and transforms by itself, from core TensorFlow ops only. See `exported`."""

import importlib.metadata
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from paraserve.components import exported
from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY, RAW_SIGNATURE, Description
from paraserve.components.features.graph import raw_to_matrices, transform_dense
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import Manifest
from paraserve.components.train.embedding.table import StackLayout, model_inputs
from paraserve.components.train.models import model_builder
from paraserve.components.train.snapshot import read_stack
from paraserve.components.train.step import Trainer

PACKAGES = ("kfp", "numpy", "paraserve", "tensorflow", "tf-keras")


class ServedModel(tf.Module):
    """The trained model with its tables, on this machine alone."""

    def __init__(
        self, manifest: Manifest, model: tf_keras.Model, stacks: Sequence[tuple[StackLayout, npt.NDArray[np.float32]]]
    ):
        super().__init__()
        self._manifest, self._spec = manifest, manifest.spec
        self._linear = bool(getattr(model, "linear_weights", False))
        # Only the weights are tracked: a Keras object would be saved as one, with code that nobody loads.
        self.weights = list(model.variables)
        self._call = lambda inputs: model(inputs, training=False)
        self._layouts = [layout for layout, _ in stacks]
        self.tables = [tf.Variable(rows, trainable=False) for _, rows in stacks]
        width, n_dense = self._spec.id_width, len(self._spec.dense)
        self.prehashed = tf.function(
            self._prehashed,
            input_signature=[tf.TensorSpec([None, width], tf.int64, IDS), tf.TensorSpec([None, n_dense], tf.float32, DENSE)],
        )
        raw = {feature.name: tf.TensorSpec([None], tf.string, feature.name) for feature in self._spec.features}
        self.raw = tf.function(self._raw).get_concrete_function(**raw)

    def _prehashed(self, ids: tf.Tensor, dense: tf.Tensor) -> dict[str, tf.Tensor]:
        columns: dict[str, tf.Tensor] = {}
        for layout, table in zip(self._layouts, self.tables, strict=True):
            wanted = layout.wanted(ids, self._spec)
            columns |= wanted.pooled(tf.gather(table, wanted.numbers))
        numbers = transform_dense(self._spec, self._manifest.moments, dense)
        logits = self._call(model_inputs(self._spec, numbers, columns, self._linear))
        return {PROBABILITY: tf.sigmoid(logits[:, 0])}

    def _raw(self, **raw: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._prehashed(*raw_to_matrices(self._spec, raw))


def export(trainer: Trainer, target: Path, run_id: str) -> Description:
    """Writes the trainer's state as a SavedModel to `target`, which appears when it is whole; an older one is replaced."""
    description = Description(
        spec=trainer.spec,
        moments=trainer.manifest.moments,
        data_digest=trainer.manifest.data_digest,
        training=trainer.config.settings(),
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        run_id=run_id,
    )
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        served = _local_copy(trainer)
        tf.saved_model.save(served, str(temporary), {RAW_SIGNATURE: served.raw, MATRIX_SIGNATURE: served.prehashed})
        (temporary / exported.DESCRIPTION).parent.mkdir(exist_ok=True)
        (temporary / exported.DESCRIPTION).write_bytes(description.to_json())
        _write_warmup(trainer.spec, temporary / exported.WARMUP)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return description


def largest_difference(model: Path, rows: Sequence[Mapping[str, str]], expected: npt.NDArray[np.float32]) -> float:
    """How far the exported model's answers to raw rows are from the trainer's, float32 [rows], at most."""
    signature = tf.saved_model.load(str(model)).signatures[RAW_SIGNATURE]
    answers = signature(**{name: tf.constant([row[name] for row in rows]) for name in rows[0]})
    return float(np.abs(answers[PROBABILITY].numpy() - expected).max())


def _local_copy(trainer: Trainer) -> ServedModel:
    spec, linear = trainer.spec, trainer.linear
    model = model_builder(trainer.config.model)(spec, trainer.config)
    columns = {c.name: tf.zeros([1, c.dimension + int(linear)]) for c in spec.embedded}
    model(model_inputs(spec, tf.zeros([1, len(spec.dense)]), columns, linear))
    for copy, variable in zip(model.variables, trainer.model.variables, strict=True):
        copy.assign(variable.numpy())
    return ServedModel(trainer.manifest, model, [(stack.layout, read_stack(stack)) for stack in trainer.stacks])


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
