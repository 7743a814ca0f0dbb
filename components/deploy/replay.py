"""Replays examples of the packed set's raw sample through the endpoint, as its clients would send them."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import requests

from paraserve.components.deploy.asking import probability_of
from paraserve.components.deploy.envoy import UPSTREAM_HEADER
from paraserve.components.deploy.observation import Reply
from paraserve.components.exported import PROBABILITY
from paraserve.components.manifest import read_manifest, read_raw_sample

CLIENTS = 4
"""Concurrent clients, each with connections that it keeps."""
REQUESTS_PER_SECOND = 250.0
"""At most: a laptop's two cores also run the servers."""
GRPC_EVERY = 4
"""Each fourth request goes by gRPC, the others by REST."""
TIMEOUT_SECONDS = 30.0


def read_rows(shards: str) -> list[dict[str, str]]:
    """The raw sample of a packed data set. Raises ValueError when there is none."""
    rows = read_raw_sample(shards, read_manifest(shards))
    if not rows:
        raise ValueError(f"{shards} has no raw sample to replay; ingest again with a sample")
    return rows


class Replay:
    """A rollout.Traffic of raw rows, one in each request, taken in turn."""

    def __init__(
        self,
        endpoint: str,
        model_name: str,
        rows: Sequence[Mapping[str, str]],
        side_of: Callable[[str], str] = lambda _: "",
        with_grpc: bool = True,
    ):
        """`side_of` tells who answered from the address in Envoy's response header; `with_grpc` whether one port has both."""
        self.endpoint, self.model_name, self.rows, self.side_of = endpoint, model_name, rows, side_of
        self._turn = itertools.count()
        self._clients = ThreadPoolExecutor(CLIENTS, "replay")
        self._local = threading.local()
        # The stubs import TensorFlow, some seconds; meanwhile the new version's server starts.
        address = endpoint.removeprefix("http://")
        self._stub = self._clients.submit(_GrpcClient, address, model_name) if with_grpc else None

    def send(self, count: int) -> list[Reply]:
        begin = time.monotonic()
        due = [begin + i / REQUESTS_PER_SECOND for i in range(count)]
        return list(self._clients.map(self._send_one, due))

    def close(self) -> None:
        self._clients.shutdown()
        if self._stub:
            self._stub.result().close()

    def _send_one(self, due: float) -> Reply:
        turn = next(self._turn)
        row = turn % len(self.rows)
        by_grpc = self._stub is not None and turn % GRPC_EVERY == 0
        send = self._by_grpc if by_grpc else self._by_rest
        client: Any = self._stub.result() if self._stub and by_grpc else self._session()
        time.sleep(max(0.0, due - time.monotonic()))
        begin = time.perf_counter()
        answer = send(client, self.rows[row])
        return Reply(row=row, seconds=time.perf_counter() - begin, **answer)

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False  # a proxy of the environment is not for this machine
        session: requests.Session = self._local.session
        return session

    def _by_rest(self, session: requests.Session, row: Mapping[str, str]) -> dict[str, Any]:
        url = f"{self.endpoint}/v1/models/{self.model_name}:predict"
        try:
            response = session.post(url, json={"instances": [row]}, timeout=TIMEOUT_SECONDS)
        except requests.RequestException as error:
            return {"probability": None, "error": str(error)}
        side = self.side_of(response.headers.get(UPSTREAM_HEADER, ""))
        if not response.ok:
            said = f"HTTP {response.status_code}: {response.text[:300]}"
            return {"probability": None, "side": side, "error": said, "refused": response.status_code < 500}
        return {"probability": probability_of(response.json()["predictions"][0]), "side": side}

    def _by_grpc(self, client: "_GrpcClient", row: Mapping[str, str]) -> dict[str, Any]:
        try:
            probability, upstream = client.predict(row)
        except grpc.RpcError as error:
            refused = error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            upstream = dict(error.initial_metadata() or ()).get(UPSTREAM_HEADER, "")
            return {"probability": None, "side": self.side_of(upstream), "error": str(error.details()), "refused": refused}
        return {"probability": probability, "side": self.side_of(upstream)}


class _GrpcClient:
    """Predict over one channel."""

    def __init__(self, address: str, model_name: str):
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self.model_name = model_name
        self.channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)

    def predict(self, row: Mapping[str, str]) -> tuple[float, str]:
        """The probability, and the address of the server that said it."""
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model_name
        for name, text in row.items():
            tensor = request.inputs[name]
            tensor.dtype = types_pb2.DT_STRING
            tensor.tensor_shape.dim.add(size=1)
            tensor.string_val.append(text.encode())
        response, call = self.stub.Predict.with_call(request, timeout=TIMEOUT_SECONDS)
        output = response.outputs[PROBABILITY]
        value = output.float_val[0] if output.float_val else _first_float(output.tensor_content)
        return value, dict(call.initial_metadata()).get(UPSTREAM_HEADER, "")

    def close(self) -> None:
        self.channel.close()


def _first_float(content: bytes) -> float:
    return float(memoryview(content)[:4].cast("f")[0])
