"""The kserve target against a small fake of the API: real HTTP, real client, a controller that lags behind as the real one."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from paraserve.components import storage
from paraserve.components.deploy import kserve, replay
from paraserve.components.deploy.champion import champion_of
from paraserve.components.deploy.config import DeployConfig, RolloutConfig
from paraserve.components.deploy.inference_service import REVISION_URI
from paraserve.components.deploy.job import roll_out
from paraserve.components.deploy.journal import RolloutResult
from paraserve.components.deploy.kserve import KServeTarget
from paraserve.components.deploy.kubernetes_api import KubernetesApi
from paraserve.components.deploy.replay import Replay
from paraserve.components.deploy.rollout import ServedModel
from paraserve.components.exported import DESCRIPTION, Description
from paraserve.components.features.spec import parse_spec
from paraserve.components.register.registry import RegisteredVersion, Registry

ROWS = [{"age": str(20 + i)} for i in range(30)]
LAG = 3
"""Looks at the object for which a change of it shows nowhere."""


class FakeKServe:
    """One namespace: stores InferenceServices, makes revisions of them, splits requests between those."""

    def __init__(self) -> None:
        self.address = ""
        self.services: dict[str, dict[str, Any]] = {}
        self.revisions: list[str] = []
        self.sent: list[str] = []
        self.patches: list[tuple[Any, Any]] = []
        self.asked: dict[str, int] = {}
        self.missing: set[str] = set()
        self.broken: set[str] = set()
        self.denied = False
        self._looks = self._turn = 0

    def url(self, host: str) -> str:
        return f"{self.address}/hosts/{host}"

    def api(self, method: str, path: str, body: Any, content_type: str) -> tuple[int, Any]:
        if self.denied:
            return 403, {"message": 'inferenceservices "ctr" is forbidden: User "x" cannot do that'}
        if revision := re.search(r"/revisions/ctr-predictor-(\d+)$", path):
            uri = self.revisions[int(revision[1]) - 1]
            return 200, {"metadata": {"annotations": {REVISION_URI: uri}}}
        if method == "POST":
            self.services["ctr"], self._looks = body, LAG
            return 201, body
        if "ctr" not in self.services:
            return 404, {"message": "not found"}
        if method == "DELETE":
            del self.services["ctr"]
            return 200, {}
        service = self.services["ctr"]
        if method == "PATCH":
            if content_type != "application/merge-patch+json":
                return 415, {"message": "unsupported media type"}
            merge(service, body)
            predictor = body["spec"]["predictor"]
            self.patches.append((predictor.get("model", {}).get("storageUri"), predictor["canaryTrafficPercent"]))
            self._looks = LAG
        else:
            self._reconcile(service)
        return 200, service

    def _reconcile(self, service: dict[str, Any]) -> None:
        self._looks -= 1
        if self._looks > 0 or "model" not in service["spec"]["predictor"]:
            return
        predictor = service["spec"]["predictor"]
        uri, percent = predictor["model"]["storageUri"], predictor["canaryTrafficPercent"]
        old = service.get("status", {}).get("components", {}).get("predictor", {})
        if not self.revisions or self.revisions[-1] != uri:
            self.revisions.append(uri)
        created = f"ctr-predictor-{len(self.revisions)}"
        loads = uri not in self.missing
        ready = created if loads else old.get("latestReadyRevision")
        rolled = ready if percent == 100 or not old else old["latestRolledoutRevision"]
        traffic = [{"revisionName": ready, "percent": 100 if rolled == ready else percent, "latestRevision": True}]
        if rolled != ready:
            traffic.append({"revisionName": rolled, "percent": 100 - percent, "latestRevision": False})
        service["status"] = {
            "deploymentMode": "Knative",
            "conditions": [{"type": "Ready", "status": "True" if loads else "Unknown"}],
            "modelStatus": {"transitionStatus": "UpToDate"}
            if loads
            else {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": {"message": "no such model"}},
            "components": {
                "predictor": {
                    "latestCreatedRevision": created,
                    "latestReadyRevision": ready,
                    "latestRolledoutRevision": rolled,
                    "traffic": traffic,
                }
            },
        }

    def predict(self, host: str, instances: list[dict[str, str]]) -> tuple[int, Any]:
        traffic = self.services["ctr"]["status"]["components"]["predictor"]["traffic"]
        if host == "latest-ctr-predictor":
            entry = traffic[0]
        elif host == "prev-ctr-predictor":
            entry = traffic[1]
        else:
            self._turn += 1
            entry = traffic[0] if self._turn * 37 % 100 < traffic[0]["percent"] else traffic[-1]
        uri = self.revisions[int(entry["revisionName"].rsplit("-", 1)[1]) - 1]
        if host == "ctr-predictor":
            self.asked[uri] = self.asked.get(uri, 0) + 1
            if uri in self.broken:
                return 500, {"error": "broken"}
        return 200, {"predictions": [int(row["age"]) / 100 for row in instances]}


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if isinstance(value, dict):
            merge(target.setdefault(name, {}), value)
        else:
            target[name] = value


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKServe]:
    fake, lock = FakeKServe(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            path = self.path.partition("?")[0]
            with lock:
                if host := re.match(r"/hosts/([^/]+)/v1/models/ctr:predict$", path):
                    code, content = fake.predict(host[1], body["instances"])
                else:
                    code, content = fake.api(self.command, path, body, self.headers.get("Content-Type", ""))
                payload = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setattr(kserve, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(replay, "REQUESTS_PER_SECOND", 2000.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        fake.address = f"http://127.0.0.1:{server.server_port}"
        yield fake
        server.shutdown()
        thread.join()


@pytest.fixture
def registry(bucket: str) -> Registry:
    return Registry(storage.join(bucket, "registry"))


def register(registry: Registry, folder: Path, tensorflow: str) -> RegisteredVersion:
    spec = parse_spec({"label": {"column": "click", "positive_at_least": 1}, "dense": {"age": {}}})
    description = Description(
        spec=spec, moments={}, data_digest="d", training={}, versions={"tensorflow": tensorflow}, run_id="run"
    )
    storage.write_bytes(str(folder / "saved_model.pb"), tensorflow.encode())
    storage.write_bytes(str(folder / DESCRIPTION), description.to_json())
    return registry.register("ctr", folder, {}, "run")


def deploy(cluster: FakeKServe, registry: Registry, version: RegisteredVersion, run_id: str) -> RolloutResult:
    """As deploy_kserve does, but for where the cluster and its hosts are."""
    config = DeployConfig(
        version=version.version,
        model_uri=version.model_uri,
        shards="-",
        registry=registry.place,
        model_name="ctr",
        serving=storage.join(registry.place, "serving"),
        run_id=run_id,
        rollout=RolloutConfig(step_requests=100, warmup_requests=0, start_deadline=5),
        target="kserve",
        kserve_namespace="ns",
    )
    with client.ApiClient(client.Configuration(host=cluster.address)) as api_client:
        target = KServeTarget(
            KubernetesApi(client.CustomObjectsApi(api_client), "ns"),
            "ctr",
            champion_of(registry.place, "ctr"),
            ServedModel(version=version.version, model_uri=version.model_uri),
            ROWS,
            start_deadline=5,
            service_account="reader",
            address=cluster.url,
        )
        traffic = Replay(target.endpoint, "ctr", ROWS, with_grpc=False)
        try:
            return roll_out(config, target, traffic)
        finally:
            traffic.close()


@pytest.fixture
def first(cluster: FakeKServe, registry: Registry, tmp_path: Path) -> RegisteredVersion:
    """A first model, deployed."""
    version = register(registry, tmp_path / "1", "2.20.0")
    result = deploy(cluster, registry, version, "run-1")
    assert (result.decision, result.steps) == ("promoted", (100,))
    return version


def test_a_first_model_is_created_whole(cluster: FakeKServe, registry: Registry, first: RegisteredVersion) -> None:
    service = cluster.services["ctr"]
    assert service["metadata"]["annotations"] == {
        "serving.kserve.io/deploymentMode": "Knative",
        "serving.kserve.io/enable-tag-routing": "true",
        "serving.knative.dev/progress-deadline": "5s",
    }
    assert service["spec"]["predictor"] == {
        "canaryTrafficPercent": 100,
        "minReplicas": 1,
        "serviceAccountName": "reader",
        "model": {
            "modelFormat": {"name": "tensorflow"},
            "protocolVersion": "v1",
            "runtimeVersion": "2.20.0",
            "storageUri": first.model_uri,
        },
    }
    assert registry.aliases("ctr") == {"champion": "v1"}


def test_a_canary_climbs_and_is_promoted(
    cluster: FakeKServe, registry: Registry, first: RegisteredVersion, tmp_path: Path
) -> None:
    cluster.patches.clear()
    cluster.asked.clear()
    second = register(registry, tmp_path / "2", "2.21.0")
    result = deploy(cluster, registry, second, "run-2")
    assert (result.decision, result.steps, result.failed_requests) == ("promoted", (10, 50, 100), 0)
    assert cluster.patches == [(second.model_uri, 0), (None, 10), (None, 50), (None, 100), (None, 100)]
    assert cluster.services["ctr"]["spec"]["predictor"]["model"]["runtimeVersion"] == "2.21.0"
    # 200 requests at 10 % (so that 20 reach it), 100 at 50 % and 100 at 100 %.
    assert cluster.asked[second.model_uri] == pytest.approx(170, abs=5)
    assert result.requests == {"stable": 230, "canary": 170}
    assert registry.aliases("ctr") == {"champion": "v2", "previous": "v1"}
    # The same step again finds nothing to do.
    cluster.patches.clear()
    assert deploy(cluster, registry, second, "run-2").decision == "promoted"
    assert cluster.patches == []


def test_a_broken_canary_is_rolled_back_in_the_safe_order(
    cluster: FakeKServe, registry: Registry, first: RegisteredVersion, tmp_path: Path
) -> None:
    second = register(registry, tmp_path / "2", "2.21.0")
    cluster.patches.clear()
    cluster.broken.add(second.model_uri)
    result = deploy(cluster, registry, second, "run-2")
    assert (result.decision, result.steps) == ("rolled_back", (10,))
    assert cluster.patches == [(second.model_uri, 0), (None, 10), (None, 0), (first.model_uri, 0), (None, 100)]
    assert cluster.services["ctr"]["spec"]["predictor"]["model"]["runtimeVersion"] == "2.20.0"
    assert cluster.revisions == [first.model_uri, second.model_uri, first.model_uri]
    assert registry.aliases("ctr") == {"candidate": "v2", "champion": "v1"}


def test_a_model_that_does_not_load_gets_no_traffic(
    cluster: FakeKServe, registry: Registry, first: RegisteredVersion, tmp_path: Path
) -> None:
    second = register(registry, tmp_path / "2", "2.21.0")
    cluster.missing.add(second.model_uri)
    result = deploy(cluster, registry, second, "run-2")
    assert (result.decision, result.steps) == ("rolled_back", ())
    assert result.reason == "BlockedByFailedLoad: no such model"
    assert second.model_uri not in cluster.asked


@pytest.mark.parametrize("during", ["the canary's step", "the rollback"])
def test_a_killed_rollout_is_restored_first(
    cluster: FakeKServe, registry: Registry, first: RegisteredVersion, tmp_path: Path, during: str
) -> None:
    service = cluster.services["ctr"]
    predictor = service["spec"]["predictor"]
    predictor["model"]["storageUri"], predictor["canaryTrafficPercent"] = "gs://somewhere/bad", 50
    cluster._looks = 0
    cluster._reconcile(service)
    if during == "the rollback":  # the old URI stands there again, but its new revision is not ready, and has nothing yet
        predictor["model"]["storageUri"], predictor["canaryTrafficPercent"] = first.model_uri, 0
        cluster._looks = LAG
    cluster.patches.clear()
    second = register(registry, tmp_path / "2", "2.21.0")
    assert deploy(cluster, registry, second, "run-2").decision == "promoted"
    restored = [(None, 100)] if during == "the rollback" else [(None, 0), (first.model_uri, 0), (None, 100)]
    assert cluster.patches[: len(restored) + 1] == [*restored, (second.model_uri, 0)]
    assert cluster.revisions == [first.model_uri, "gs://somewhere/bad", first.model_uri, second.model_uri]


def test_a_first_model_that_fails_is_taken_away(cluster: FakeKServe, registry: Registry, tmp_path: Path) -> None:
    version = register(registry, tmp_path / "1", "2.21.0")
    cluster.broken.add(version.model_uri)
    result = deploy(cluster, registry, version, "run-1")
    assert result.decision == "rolled_back"
    assert cluster.services == {}


def test_a_service_of_others_is_left_alone(cluster: FakeKServe, registry: Registry, tmp_path: Path) -> None:
    cluster.services["ctr"] = {"metadata": {"name": "ctr"}, "spec": {"predictor": {"sklearn": {}}}}
    with pytest.raises(ValueError, match="is not paraserve's; use another model_name"):
        deploy(cluster, registry, register(registry, tmp_path / "1", "2.21.0"), "run-1")
    assert cluster.services["ctr"]["spec"] == {"predictor": {"sklearn": {}}}


def test_missing_rights_are_named(cluster: FakeKServe, registry: Registry, tmp_path: Path) -> None:
    cluster.denied = True
    with pytest.raises(RuntimeError, match=r"refused to get inferenceservices ctr: 403.*needs get, create, patch and delete"):
        deploy(cluster, registry, register(registry, tmp_path / "1", "2.21.0"), "run-1")


def test_importing_it_needs_no_cluster_client() -> None:
    import subprocess
    import sys

    code = "import sys, paraserve.components.deploy.kserve; sys.exit('kserve' in sys.modules or 'kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
