"""The model server as its clients see it: unmodified gRPC stubs and plain HTTP against the real process."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests

ROW = {"user_id": "196", "age": "49", "genres": "Comedy|Drama"}
EXPECTED = 0.7109495  # sigmoid((49 - 40) / 10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process and how to talk to it."""

    def __init__(self, base: Path, log: Path, rest_port: int | None = None, *options: str):
        self.rest_port, self.grpc_port, self.log = rest_port or free_port(), free_port(), log
        command = [
            sys.executable,
            "-m",
            "paraserve.components.deploy.server",
            "--model-name",
            "clicks",
            "--model-base",
            str(base),
        ]
        command += ["--rest-port", str(self.rest_port), "--grpc-port", str(self.grpc_port), *options]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stderr=output)

    def wait(self) -> None:
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        try:
            return self.get().ok
        except requests.RequestException:  # it listens before it loads
            return False

    def get(self, path: str = "") -> requests.Response:
        return requests.get(f"http://127.0.0.1:{self.rest_port}/v1/models/clicks{path}", timeout=10)

    def post(self, body: object, path: str = ":predict") -> requests.Response:
        return requests.post(f"http://127.0.0.1:{self.rest_port}/v1/models/clicks{path}", json=body, timeout=10)

    def version(self) -> str:
        states = self.get().json()["model_version_status"]
        return str(next(s["version"] for s in states if s["state"] == "AVAILABLE"))


@pytest.fixture(scope="module")
def base(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    shutil.copytree(models / "good" / "1", folder / "1")
    return folder


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(base, tmp_path_factory.mktemp("log") / "log")
    try:
        running.wait()
        yield running
    finally:
        running.kill()


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
        yield opened


def test_rows_and_columns(server: Server) -> None:
    rows = server.post({"instances": [ROW, {**ROW, "age": "", "genres": ""}]})
    assert rows.json() == {"predictions": [pytest.approx(EXPECTED), 0.5]}

    columns = {"signature_name": "prehashed", "inputs": {"ids": [[1, 2, 3, 4]], "dense": [[49.0]]}}
    assert server.post(columns).json() == {"outputs": [pytest.approx(EXPECTED)]}
    assert server.post(columns, "/versions/1:predict").status_code == 200


def test_bytes_as_base64(server: Server) -> None:
    assert server.post({"instances": [{**ROW, "age": {"b64": "NDk="}}]}).json()["predictions"] == [pytest.approx(EXPECTED)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"instances": [{**ROW, "age": 49}]}, "give a text in quotes"),
        ({"instances": [{**ROW, "age": "old"}]}, "old"),
        ({"instances": [{"user_id": "1", "age": "2"}]}, "missing inputs ['genres']"),
        ({"instances": [ROW, {"user_id": "1"}]}, "row 1"),
        ({"instances": []}, "at least one row"),
        ({"instances": ["x"]}, "must be an object"),
        ({"inputs": {**{n: [v] for n, v in ROW.items()}, "shoe": ["x"]}}, "unknown inputs ['shoe']"),
        ({"instances": [ROW], "inputs": {}}, "either"),
        ({"rows": [ROW]}, "either"),
        ([1], "either"),
        ({"instances": [{**ROW, "age": {"b64": "?"}}]}, "not base64"),
        ({"signature_name": "prehashed", "inputs": {"ids": [[1, 2]], "dense": [[1.0]]}}, "shape [1, 2]"),
        ({"signature_name": "prehashed", "inputs": {"ids": [[1, 2, 3, 2**63]], "dense": [[1.0]]}}, "`ids`"),
        ({"signature_name": "prehashed", "inputs": {"ids": [[1, 2, 3, 4], [1]], "dense": [[1.0]]}}, "`ids`"),
        ({"signature_name": "prehashed", "inputs": {"ids": [[1.5, 2, 3, 4]], "dense": [[1.0]]}}, "`ids`"),
    ],
)
def test_a_bad_request_is_400_with_the_remedy(server: Server, body: object, said: str) -> None:
    response = server.post(body)

    assert response.status_code == 400
    assert said in response.json()["error"]


def test_what_is_not_there_is_404(server: Server) -> None:
    assert server.post({"instances": [ROW]}, "/versions/9:predict").status_code == 404
    assert server.post({"instances": [ROW], "signature_name": "x"}).status_code == 404
    assert server.get("x").status_code == 404
    assert server.post({}, ":classify").status_code == 501


def test_status_and_metadata(server: Server) -> None:
    assert server.get().json()["model_version_status"][0]["state"] == "AVAILABLE"
    signatures = server.get("/metadata").json()["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["age"]["dtype"] == "DT_STRING"


def predict_request(**inputs: list[str]) -> object:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "clicks"
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return request


def test_grpc_predict(channel: grpc.Channel) -> None:
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(predict_request(**{name: [value] * 2 for name, value in ROW.items()}))

    assert tf.make_ndarray(response.outputs["probability"]).tolist() == pytest.approx([EXPECTED] * 2)
    assert (response.model_spec.version.value, response.model_spec.signature_name) == (1, "serving_default")


def test_grpc_errors(channel: grpc.Channel) -> None:
    from tensorflow_serving.apis import classification_pb2, prediction_service_pb2_grpc

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    with pytest.raises(grpc.RpcError, match="missing inputs") as missing:
        stub.Predict(predict_request(age=["1"]))
    assert missing.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    request = predict_request(age=["1"])
    request.model_spec.name = "other"  # type: ignore[attr-defined]
    with pytest.raises(grpc.RpcError, match="no model 'other'"):
        stub.Predict(request)
    with pytest.raises(grpc.RpcError, match="call Predict"):
        stub.Classify(classification_pb2.ClassificationRequest())


def test_grpc_status_and_metadata(channel: grpc.Channel) -> None:
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        prediction_service_pb2_grpc,
    )

    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "clicks"
    answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status)
    assert answer.model_version_status[0].state == get_model_status_pb2.ModelVersionStatus.AVAILABLE

    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "clicks"
    answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(metadata)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    answer.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "prehashed"}


def test_a_new_version_is_taken_and_a_damaged_one_refused(server: Server, base: Path, models: Path) -> None:
    def put(model: str, version: int) -> None:
        shutil.copytree(models / model / "1", base / f".{version}")
        (base / f".{version}").rename(base / str(version))

    put("broken", 2)
    put("better", 3)
    answers = []
    deadline = time.monotonic() + 10
    while server.version() != "3" and time.monotonic() < deadline:
        answers.append(server.post({"instances": [ROW]}).status_code)
    assert server.version() == "3"
    assert set(answers) == {200}

    put("broken", 4)
    while len(states := server.get().json()["model_version_status"]) == 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [s["state"] for s in states] == ["AVAILABLE", "END"]
    assert states[1]["status"]["error_message"]
    assert server.post({"instances": [ROW]}).status_code == 200
    shutil.rmtree(base / "4")


def test_reload_config_moves_the_base_path(server: Server, channel: grpc.Channel, base: Path, models: Path) -> None:
    from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

    def reload(path: Path) -> int:
        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.config.add(name="clicks", base_path=str(path))
        return int(model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request).status.error_code)

    assert reload(models / "constant") == 0
    assert server.post({"instances": [ROW]}).json() == {"predictions": [0.5]}
    assert reload(models / "broken") != 0
    assert server.post({"instances": [ROW]}).json() == {"predictions": [0.5]}
    assert reload(base) == 0


def test_a_port_in_use_is_said_at_once(base: Path, server: Server, tmp_path: Path) -> None:
    second = Server(base, tmp_path / "log", server.rest_port)

    assert second.process.wait(10) == 2
    assert f"cannot listen on ports {server.rest_port}" in second.log.read_text()


@pytest.mark.slow
def test_sigterm_lets_requests_under_way_end_and_the_fail_fraction_fails_requests(models: Path, tmp_path: Path) -> None:
    server = Server(models / "good", tmp_path / "log", None, "--fail-fraction", "0.5")
    server.wait()
    codes = [server.post({"instances": [ROW]}).status_code for _ in range(60)]
    assert 10 < codes.count(500) < 50
    assert codes.count(200) == 60 - codes.count(500)

    begun = socket.create_connection(("127.0.0.1", server.rest_port))
    with contextlib.closing(begun):
        body = b'{"instances": [{"user_id": "1", "age": "2", "genres": ""}]}'
        head = f"POST /v1/models/clicks:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        begun.sendall(head.encode() + body[:10])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        begun.sendall(body[10:])
        begun.settimeout(5)
        assert begun.recv(100).startswith(b"HTTP/1.1 ")
    assert server.process.wait(15) == 0
