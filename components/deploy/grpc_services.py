"""TensorFlow Serving's gRPC services over `Versions`.

Their definitions: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from paraserve.components.deploy.servable import BadRequest, Servable, Unknown, to_arrays
from paraserve.components.deploy.versions import Versions

Method = TypeVar("Method", bound=Callable[..., Any])
State = get_model_status_pb2.ModelVersionStatus


def _with_status(method: Method) -> Method:
    """Turns our errors into gRPC's status codes."""

    @functools.wraps(method)
    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except BadRequest as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Unknown as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    return call  # type: ignore[return-value]


def _find(versions: Versions, spec: Any) -> Servable:
    if spec.version_label:
        raise BadRequest(f"version label '{spec.version_label}': labels are not served here; give a version number or none")
    return versions.get(spec.name, spec.version.value if spec.HasField("version") else None)


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata. MultiInference answers UNIMPLEMENTED by the stub."""

    def __init__(self, versions: Versions, fails: Callable[[], bool]):
        """`fails` says for each request whether it is to fail on purpose."""
        self.versions, self.fails = versions, fails

    @_with_status
    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.fails():
            context.abort(grpc.StatusCode.INTERNAL, "failed on purpose (--fail-fraction)")
        servable = _find(self.versions, request.model_spec)
        outputs = servable.signature(request.model_spec.signature_name)(to_arrays(request.inputs))
        if unknown := sorted(set(request.output_filter) - outputs.keys()):
            raise BadRequest(f"output_filter names {unknown}; the outputs are {sorted(outputs)}")
        response = predict_pb2.PredictResponse()
        _fill_spec(response.model_spec, request.model_spec, servable)
        for name in request.output_filter or outputs:
            response.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        return response

    @_with_status
    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        if set(request.metadata_field) != {"signature_def"}:
            raise BadRequest(f"metadata_field is {list(request.metadata_field)}; only 'signature_def' exists")
        return metadata(_find(self.versions, request.model_spec), self.versions.name)

    def Classify(self, request: Any, context: grpc.ServicerContext) -> Any:
        _refuse_examples(context)

    def Regress(self, request: Any, context: grpc.ServicerContext) -> Any:
        _refuse_examples(context)


def _refuse_examples(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "the signatures take named tensors, not tf.Example; call Predict instead")


def _fill_spec(spec: Any, asked: Any, servable: Servable) -> None:
    spec.name, spec.version.value = asked.name, servable.version
    spec.signature_name = asked.signature_name or "serving_default"


def metadata(servable: Servable, name: str) -> Any:
    """A GetModelMetadataResponse with the servable's signatures."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for signature_name, signature in servable.signatures.items():
        signatures.signature_def[signature_name].CopyFrom(signature.definition)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name, response.model_spec.version.value = name, servable.version
    response.metadata["signature_def"].Pack(signatures)
    return response


def status(versions: Versions) -> Any:
    """A GetModelStatusResponse: the version that serves is AVAILABLE, one that did not load END with its error."""
    response = get_model_status_pb2.GetModelStatusResponse()
    available = response.model_version_status.add(version=versions.current.version, state=State.AVAILABLE)
    available.status.SetInParent()  # OK, written out as TensorFlow Serving does
    for version, reason in sorted(versions.failed.items()):
        failed = response.model_version_status.add(version=version, state=State.END)
        failed.status.error_code, failed.status.error_message = tf.errors.UNKNOWN, reason
    return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, versions: Versions):
        self.versions = versions

    @_with_status
    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        spec = request.model_spec
        self.versions.get(spec.name, None)  # the name must be right; a version that failed has a status too
        response = status(self.versions)
        if spec.HasField("version"):
            wanted = [s for s in response.model_version_status if s.version == spec.version.value]
            if not wanted:
                raise Unknown(f"version {spec.version.value} of '{spec.name}' was never loaded")
            del response.model_version_status[:]
            response.model_version_status.extend(wanted)
        return response

    def HandleReloadConfigRequest(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Takes another base path for the one model that is served, and looks for new versions at once."""
        response = model_management_pb2.ReloadConfigResponse()
        configs = list(request.config.model_config_list.config)
        try:
            if [config.name for config in configs] != [self.versions.name]:
                raise ValueError(f"this server serves '{self.versions.name}' alone; give one config, of that name")
            self.versions.change_base(Path(configs[0].base_path))
        except ValueError as error:
            response.status.error_code, response.status.error_message = tf.errors.INVALID_ARGUMENT, str(error)
        return response
