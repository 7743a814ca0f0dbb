"""TensorFlow Serving's REST API (https://www.tensorflow.org/tfx/serving/api_rest) over `Versions`."""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paraserve.components.deploy.grpc_services import metadata, status
from paraserve.components.deploy.servable import Arrays, BadRequest, Signature, Unknown
from paraserve.components.deploy.versions import Versions


def rest_app(versions: Versions, fails: Callable[[], bool]) -> Starlette:
    """The ASGI application. `fails` says for each prediction whether it is to fail on purpose."""

    async def predict(request: Request) -> Response:
        if fails():
            return _answer({"error": "failed on purpose (--fail-fraction)"}, 500)
        body = await request.body()
        return await run_in_threadpool(_guarded, lambda: _predict(versions, request.path_params, body))

    async def model_status(request: Request) -> Response:
        return _guarded(lambda: _status(versions, request.path_params))

    async def model_metadata(request: Request) -> Response:
        return _guarded(lambda: _to_json(metadata(_find(versions, request.path_params), versions.name)))

    async def refuse(request: Request) -> Response:
        return _answer({"error": "the signatures take named tensors, not tf.Example; use :predict"}, 501)

    return Starlette(
        routes=[
            route
            for model in ("/v1/models/{model}", "/v1/models/{model}/versions/{version:int}")
            for route in (
                Route(f"{model}:predict", predict, methods=["POST"]),
                Route(f"{model}:classify", refuse, methods=["POST"]),
                Route(f"{model}:regress", refuse, methods=["POST"]),
                Route(f"{model}/metadata", model_metadata),
                Route(model, model_status),
            )
        ]
    )


def _answer(content: Any, code: int = 200) -> Response:
    # json.dumps as it is: like TensorFlow Serving it writes NaN and Infinity as bare words.
    return Response(json.dumps(content), code, media_type="application/json")


def _guarded(call: Callable[[], Any]) -> Response:
    try:
        return _answer(call())
    except BadRequest as error:
        return _answer({"error": str(error)}, 400)
    except Unknown as error:
        return _answer({"error": str(error)}, 404)


def _find(versions: Versions, path: Mapping[str, Any]) -> Any:
    return versions.get(path["model"], path.get("version"))


def _status(versions: Versions, path: Mapping[str, Any]) -> Any:
    _find(versions, path)
    return _to_json(status(versions))


def _to_json(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _predict(versions: Versions, path: Mapping[str, Any], body: bytes) -> Any:
    servable = _find(versions, path)
    request = _parse(body)
    signature = servable.signature(request.get("signature_name", ""))
    if "instances" in request:
        return {"predictions": _to_rows(signature(_from_rows(signature, request["instances"])))}
    outputs = {name: _to_values(name, array) for name, array in signature(_from_columns(signature, request["inputs"])).items()}
    return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise BadRequest('give a JSON object with either "instances" (a list of rows) or "inputs" (columns)')
    if unknown := sorted(request.keys() - {"instances", "inputs", "signature_name"}):
        raise BadRequest(f'unknown entries {unknown}; known are "instances", "inputs" and "signature_name"')
    if not isinstance(request.get("signature_name", ""), str):
        raise BadRequest(f'"signature_name" is {request["signature_name"]!r}; give a text')
    return request


def _from_rows(signature: Signature, rows: Any) -> Arrays:
    if not isinstance(rows, list) or not rows:
        raise BadRequest('"instances" must be a list of at least one row')
    if not all(isinstance(row, dict) and "b64" not in row for row in rows):
        if len(signature.inputs) > 1:
            raise BadRequest(f"each row must be an object with the inputs {list(signature.inputs)}")
        return _from_columns(signature, rows)
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise BadRequest(f"row {i} has the inputs {sorted(row)}, row 0 {sorted(rows[0])}; give every row the same")
    return _from_columns(signature, {name: [row[name] for row in rows] for name in rows[0]})


def _from_columns(signature: Signature, columns: Any) -> Arrays:
    if not isinstance(columns, dict) or "b64" in columns:
        if len(signature.inputs) > 1:
            raise BadRequest(f'"inputs" must be an object with {list(signature.inputs)}')
        columns = {next(iter(signature.inputs)): columns}
    # An unknown input is named by the signature's own check.
    return {
        name: _to_array(name, values, signature.inputs[name]) if name in signature.inputs else np.empty(0)
        for name, values in columns.items()
    }


def _to_array(name: str, values: Any, info: Any) -> npt.NDArray[Any]:
    dtype = tf.as_dtype(info.dtype)
    try:
        if dtype == tf.string:
            return np.array(_to_bytes(name, values), dtype=object)
        return _to_numbers(np.array(values), dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise BadRequest(
            f"`{name}` cannot be read as {dtype.name} {list(tf.TensorShape(info.tensor_shape))}: {error}"
        ) from error


def _to_numbers(array: npt.NDArray[Any], dtype: tf.DType) -> npt.NDArray[Any]:
    if array.dtype.kind not in ("i" if dtype.is_integer else "if" if dtype.is_floating else "b"):
        raise ValueError(f"it holds {array.dtype}")
    converted = array.astype(dtype.as_numpy_dtype)
    if dtype.is_integer and not np.array_equal(converted, array):
        raise ValueError("a number is out of range")
    return converted


def _to_bytes(name: str, value: Any) -> Any:
    """Texts and {"b64": ...} as bytes, nested lists kept."""
    match value:
        case str():
            return value.encode()
        case list():
            return [_to_bytes(name, item) for item in value]
        case {"b64": str() as encoded, **rest} if not rest:
            return _decode(name, encoded)
    raise BadRequest(f'`{name}` is {json.dumps(value)}; give a text in quotes, "" for a missing value')


def _decode(name: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise BadRequest(f"`{name}`: '{encoded}' is not base64: {error}") from error


def _to_rows(outputs: Arrays) -> list[Any]:
    columns = {name: _to_values(name, array) for name, array in outputs.items()}
    if len({len(values) if isinstance(values, list) else -1 for values in columns.values()}) != 1:
        raise BadRequest('the outputs have different numbers of rows; ask with "inputs" instead of "instances"')
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _to_values(name: str, array: npt.NDArray[Any]) -> Any:
    """Nested lists of JSON values; bytes as text, or as {"b64": ...} where the output's name ends in _bytes."""
    values = array.tolist()
    return values if array.dtype.kind not in "OS" else _texts(values, name.endswith("_bytes"))


def _texts(value: Any, encode: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, encode) for item in value]
    return {"b64": base64.b64encode(value).decode()} if encode else value.decode(errors="replace")
