"""One version of a SavedModel in memory, called by signature."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

WARMUP = "assets.extra/tf_serving_warmup_requests"
Arrays = dict[str, npt.NDArray[Any]]


class BadRequest(Exception):
    """The request cannot be answered; the message says what to change."""


class Unknown(Exception):
    """There is no such model, version or signature."""


class Signature:
    """A signature's inputs and outputs, and the function between them."""

    def __init__(self, session: tf.compat.v1.Session, definition: Any):
        self.definition = definition
        self.inputs = dict(sorted(definition.inputs.items()))
        self.outputs = dict(sorted(definition.outputs.items()))
        # A callable with fixed feeds and fetches takes about half the time of TF2's signature function.
        self._call = session.make_callable(
            [info.name for info in self.outputs.values()], feed_list=[info.name for info in self.inputs.values()]
        )

    def __call__(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Feeds arrays by input name, and gives arrays by output name. Raises BadRequest."""
        self._check(inputs)
        try:
            values = self._call(*(inputs[name] for name in self.inputs))
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise BadRequest(f"the model refused the values: {' '.join(error.message.split())}") from error
        return dict(zip(self.outputs, values, strict=True))

    def _check(self, inputs: Mapping[str, npt.NDArray[Any]]) -> None:
        missing, unknown = sorted(self.inputs.keys() - inputs.keys()), sorted(inputs.keys() - self.inputs.keys())
        if missing or unknown:
            known = ", ".join(f"`{name}`" for name in self.inputs)
            raise BadRequest(
                f'missing inputs {missing}, unknown inputs {unknown}; give each of {known}, a raw feature without a value as ""'
            )
        for name, info in self.inputs.items():
            _check_array(name, info, inputs[name])


def _check_array(name: str, info: Any, array: npt.NDArray[Any]) -> None:
    dtype = tf.as_dtype(info.dtype)
    if (array.dtype.kind in "OSU") != (dtype == tf.string) or (dtype != tf.string and array.dtype != dtype.as_numpy_dtype):
        raise BadRequest(f"`{name}` is {array.dtype}; give {dtype.name}")
    shape = tf.TensorShape(info.tensor_shape)
    if not shape.is_compatible_with(array.shape):
        raise BadRequest(f"`{name}` has shape {list(array.shape)}; give {list(shape)} (None: any length)")


class Servable:
    """A loaded version. `model_dir` is the numeric folder with saved_model.pb. A broken one raises anything."""

    def __init__(self, model_dir: Path):
        self.version = int(model_dir.name)
        self.session = tf.compat.v1.Session(graph=tf.Graph())
        loaded = tf.compat.v1.saved_model.load(self.session, [tf.saved_model.SERVING], str(model_dir))
        self.signatures = {
            name: Signature(self.session, definition)
            for name, definition in loaded.signature_def.items()
            if not name.startswith("__")  # the loader's own
        }
        self._warm_up(model_dir / WARMUP)

    def signature(self, name: str) -> Signature:
        """By name, "" for serving_default. Raises Unknown."""
        try:
            return self.signatures[name or "serving_default"]
        except KeyError:
            known = ", ".join(self.signatures)
            raise Unknown(f"there is no signature '{name}' in version {self.version}; it has {known}") from None

    def _warm_up(self, path: Path) -> None:
        """Runs the recorded requests (https://www.tensorflow.org/tfx/serving/saved_model_warmup); a bad one is an error."""
        for record in _records(path):
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if not log.HasField("predict_log"):
                raise ValueError(f"{path} holds a {log.WhichOneof('log_type')}; only predict_log is served here: export it so")
            request = log.predict_log.request
            self.signature(request.model_spec.signature_name)(to_arrays(request.inputs))


def _records(path: Path) -> Iterable[bytes]:
    return tf.data.TFRecordDataset(str(path)).as_numpy_iterator() if path.exists() else ()


def to_arrays(tensors: Mapping[str, Any]) -> Arrays:
    """TensorProtos by name as arrays. Raises BadRequest for a malformed one."""
    try:
        return {name: np.asarray(tf.make_ndarray(tensor)) for name, tensor in tensors.items()}
    except (TypeError, ValueError) as error:
        raise BadRequest(f"a tensor of the request is malformed: {error}") from error
