"""Whole runs of `paraserve run`, one after the other in one folder as a user would: each finds the champion of those before."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests

pytestmark = pytest.mark.slow
ROWS, USERS, ITEMS = 12_000, 100, 60
ROW = {"user_id": "u1", "item_id": "i1", "age": "30", "genres": "drama|crime"}
MODEL = "films"
SPEC = """\
label: {column: rating, positive_at_least: 4}
dense:
  age: {transforms: [standardise]}
categorical:
  user_id: {dimension: 8, rows: 256}
  item_id: {dimension: 8, rows: 256}
lists:
  genres: {dimension: 8, rows: 32, separator: "|", max_length: 4}
"""
SETTINGS: dict[str, Any] = {
    "model_name": MODEL,
    "epochs": 3,
    "batch_size": 64,
    "shard_rows": 1024,
    "learning_rate": 0.1,
    "hidden_units": "16",
    "step_requests": 60,
    "min_auc": 0.6,
    # So small a test split tells little apart: only what learned nothing is to be rejected.
    "max_auc_drop": 0.1,
    "max_logloss_increase": 0.2,
}


def write_log(path: Path) -> None:
    """Ratings that depend on who rates what, so that a model that learns is told from one that does not."""
    draw = random.Random(7)
    lines = ["user_id,item_id,rating,age,genres"]
    for _ in range(ROWS):
        user, item = draw.randrange(USERS), draw.randrange(ITEMS)
        liked = (user % 5 + item % 7) / 10 + draw.gauss(0, 0.15) > 0.5
        genres = "|".join(draw.sample(["drama", "crime", "comedy", "war"], draw.randrange(3)))
        lines.append(f"u{user},i{item},{5 if liked else 2},{18 + user % 50},{genres}")
    path.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Lab:
    """A working folder, its log and spec, and a free port for its endpoint."""

    folder: Path
    port: int

    @property
    def workdir(self) -> Path:
        return self.folder / "run"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/models/{MODEL}:predict"

    def settings(self, **changes: object) -> dict[str, Any]:
        places = {"data": self.folder / "log.csv", "feature_spec": self.folder / "spec.yaml", "serving_port": self.port}
        return {**SETTINGS, **{k: v if isinstance(v, int) else str(v) for k, v in places.items()}, **changes}

    @contextlib.contextmanager
    def running(self, **changes: object) -> Iterator[subprocess.Popen[str]]:
        """`paraserve run` as a process, which does not outlive the block; its output goes to the file output.txt."""
        arguments = [f"--set={name}={value}" for name, value in self.settings(**changes).items()]
        command = [sys.executable, "-m", "paraserve.pipelines.cli", "run", "--workdir", str(self.workdir), *arguments]
        with (
            (self.folder / "output.txt").open("w") as output,
            subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def run(self, expected: int, **changes: object) -> dict[str, Any]:
        """Runs to the end, and returns result.json."""
        with self.running(**changes) as process:
            code = process.wait(timeout=400)
        assert code == expected, (self.folder / "output.txt").read_text()[-6000:]
        return self.result()

    def result(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.workdir / "result.json").read_text())
        return content

    def predict(self) -> float:
        answer = requests.post(self.endpoint, json={"instances": [ROW]}, timeout=10)
        assert answer.ok, answer.text
        return float(answer.json()["predictions"][0])

    def serve(self, action: str) -> str:
        command = [sys.executable, "-m", "paraserve.pipelines.cli", "serve", action, "--workdir", str(self.workdir)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def processes(self) -> list[psutil.Process]:
        """The run's processes, those of the endpoint included: they name the folder in their arguments or environment."""
        found = []
        for process in psutil.process_iter():
            try:
                texts = [*process.cmdline(), *process.environ().values()]
            except psutil.Error:
                continue
            if process.pid != os.getpid() and any(str(self.folder) in text for text in texts):
                found.append(process)
        return found

    def leftovers(self) -> list[Path]:
        """Half-written files, and temporary folders."""
        return [*self.folder.rglob(".*.tmp"), *self.workdir.glob(".paraserve/tmp")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lab = Lab(tmp_path_factory.mktemp("lab"), port)
    write_log(lab.folder / "log.csv")
    (lab.folder / "spec.yaml").write_text(SPEC)
    yield lab
    for process in lab.processes():
        process.kill()


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def first(lab: Lab) -> dict[str, Any]:
    """The first run's result: a champion for the others."""
    return lab.run(0)


def champion(lab: Lab) -> str:
    """The version that answers, as `paraserve serve status` says."""
    return lab.serve("status").split()[1]


def train_processes(lab: Lab) -> list[psutil.Process]:
    """The coordinator and its servers once all have started: the servers are forked, so they have its command line."""
    coordinators = [p for p in lab.processes() if "train" in p.cmdline() and "kfp.dsl.executor_main" in p.cmdline()]
    return coordinators if len(coordinators) == 5 else []


def snapshots(lab: Lab) -> int:
    return len(list((lab.workdir / "snapshots").glob("*/*")))


def test_the_first_model_is_promoted_and_answers(lab: Lab, first: dict[str, Any]) -> None:
    assert first["status"] == "succeeded"
    assert list(first["steps"]) == ["ingest", "train", "evaluate", "register", "deploy"]
    assert all(step["state"] == "succeeded" for step in first["steps"].values())
    assert first["metrics"]["auc"] > 0.7
    assert first["gate"]["decision"] == "promote"
    assert (first["model"]["name"], first["model"]["version"]) == (MODEL, "v1")
    assert (Path(first["model"]["uri"]) / "1" / "saved_model.pb").exists()
    assert first["rollout"]["decision"] == "promoted"
    assert first["rollout"]["failed_requests"] == 0
    assert 0 < lab.predict() < 1
    assert "</html>" in (lab.workdir / "report.html").read_text()
    assert not lab.leftovers()


def test_the_endpoint_answers_raw_rows_as_the_trainer_does_packed_ones(lab: Lab, first: dict[str, Any]) -> None:
    """Trainer = exported model (asked with raw rows in the train step) = what the server says, over 1,000 rows."""
    from paraserve.components.deploy.replay import read_rows
    from paraserve.components.evaluate.predict import ExportedModel
    from paraserve.components.manifest import read_manifest
    from paraserve.components.records import read_shard

    outputs = {
        name: json.loads(next(lab.workdir.glob(f"runs/*/steps/{name}.json")).read_text())["outputs"] for name in first["steps"]
    }
    assert outputs["train"]["export_rows"] >= 1000
    assert outputs["train"]["export_difference"] <= 1e-6
    shards = outputs["ingest"]["shards"]
    raw, manifest = read_rows(shards)[:1000], read_manifest(shards)
    answers = []
    for start in range(0, 1000, 100):
        answer = requests.post(lab.endpoint, json={"instances": raw[start : start + 100]}, timeout=30)
        answers += answer.json()["predictions"]
    packed = read_shard(Path(shards) / manifest.splits["eval"].shards[0].file, manifest.layout).rows(0, 1000)
    model = ExportedModel(Path(first["model"]["uri"]) / "1")
    assert len(raw) == len(answers) == 1000
    np.testing.assert_allclose(answers, model.predict(packed.id_matrix(manifest.layout), packed.dense), rtol=0, atol=1e-6)
    assert np.std(answers) > 0.05


def test_a_retrained_model_passes_the_canarys_steps(lab: Lab, first: dict[str, Any]) -> None:
    result = lab.run(0, epochs=4)
    assert result["rollout"]["decision"] == "promoted"
    assert result["rollout"]["steps"] == [10, 50, 100]
    assert min(result["rollout"]["requests"].values()) > 0
    assert result["rollout"]["failed_requests"] == 0
    assert champion(lab) == result["model"]["version"] == "v2"


def test_a_model_that_learned_nothing_is_rejected(lab: Lab, first: dict[str, Any]) -> None:
    before = champion(lab), lab.predict()
    result = lab.run(3, learning_rate=0)
    assert (result["status"], result["rollout"]["decision"]) == ("succeeded", "skipped")
    assert result["gate"]["decision"] == "reject"
    assert result["gate"]["reasons"]
    assert (champion(lab), lab.predict()) == before


def test_a_canary_that_fails_is_rolled_back(lab: Lab, first: dict[str, Any]) -> None:
    before = champion(lab), lab.predict()
    result = lab.run(4, seed=1, drill_canary_errors=1.0)
    assert (result["status"], result["error"]["step"]) == ("failed", "deploy")
    assert result["rollout"]["decision"] == "rolled_back"
    assert result["rollout"]["failed_requests"] == 0
    assert (champion(lab), lab.predict()) == before


def test_a_killed_worker_does_not_stop_the_run(lab: Lab, first: dict[str, Any]) -> None:
    with lab.running(seed=2, epochs=15, patience=0) as run:
        wait_until(lambda: train_processes(lab) and "epoch 1:" in (lab.folder / "output.txt").read_text())
        coordinator = next(p for p in train_processes(lab) if p.children())
        coordinator.children()[-1].send_signal(signal.SIGKILL)  # servers start in order, parameter servers first
        assert run.wait(timeout=400) == 0, (lab.folder / "output.txt").read_text()[-6000:]
    record = json.loads(max((lab.workdir / "runs").glob("*/steps/train.json")).read_text())
    assert record["outputs"]["workers_lost"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_only_the_endpoint(lab: Lab, first: dict[str, Any], number: signal.Signals) -> None:
    before = champion(lab), lab.predict(), {p.pid for p in lab.processes()}
    with lab.running(seed=3, epochs=500, patience=0) as run:
        wait_until(lambda: train_processes(lab) and "epoch 1" in (lab.folder / "output.txt").read_text())
        stopped = [process for process in lab.processes() if process.pid not in before[2]]
        assert len(stopped) > 5
        refused = subprocess.run(run.args, check=False, capture_output=True, text=True)
        assert refused.returncode == 2
        assert "another `paraserve run` goes on" in refused.stderr
        ports = {c.laddr.port for p in stopped for c in p.connections() if c.status == psutil.CONN_LISTEN}
        run.send_signal(number)
        assert run.wait(timeout=30) == (1 if number == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(stopped, timeout=5)
    assert not alive
    listening = {c.laddr.port for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN}
    assert ports
    assert not ports & listening
    assert (champion(lab), lab.predict(), {p.pid for p in lab.processes()}) == before
    if number == signal.SIGINT:
        result = lab.result()
        assert (result["status"], result["error"]["step"]) == ("failed", "train")
        assert result["error"]["message"] == "the run was stopped by SIGINT"
        assert not lab.leftovers()


def test_a_failed_run_says_the_step_and_the_cause(lab: Lab, first: dict[str, Any]) -> None:
    bad = lab.folder / "bad.csv"
    bad.write_text("user_id,item_id,rating,age,genres\n" + "u1,i1,many,30,drama\n" * 100)
    result = lab.run(1, data=bad)
    assert (result["status"], result["steps"]["ingest"]["state"]) == ("failed", "failed")
    assert result["error"]["step"] == "ingest"
    assert "label not a number" in result["error"]["message"]
    output = (lab.folder / "output.txt").read_text()
    assert f"FAILED at ingest\n  error:    ValueError: {result['error']['message']}" in output
    assert "Traceback" not in output
    assert not lab.leftovers()


def test_the_compiled_yaml_runs_with_the_same_result(lab: Lab, first: dict[str, Any], tmp_path: Path) -> None:
    """By plain kfp.local, as anybody would run it."""
    compiled = Path(__file__).parents[2] / "pipelines" / "compiled" / "train_to_serve.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {n: str(tmp_path / n) for n in ("shards", "snapshots", "registry", "serving", "run_folder")}
    code = f"""
import warnings
from kfp import components, local
warnings.simplefilter("ignore")
local.init(local.SubprocessRunner(use_venv=False), pipeline_root={str(tmp_path / "root")!r})
components.load_component_from_file({str(compiled)!r})(**{lab.settings(**places, serving_port=port)!r})
"""
    environment = {**os.environ, "PARASERVE_RUN_ID": "yaml", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-6000:]
    result = json.loads((tmp_path / "run_folder" / "yaml" / "result.json").read_text())
    command = [sys.executable, "-c", f"from paraserve.components.deploy import local; local.stop({places['serving']!r})"]
    subprocess.run(command, check=True)
    assert result["rollout"]["decision"] == "promoted"
    assert result["model"]["version"] == "v1"
    assert result["metrics"]["examples"] == first["metrics"]["examples"]
    assert result["metrics"]["auc"] == pytest.approx(first["metrics"]["auc"], abs=0.03)  # updates are asynchronous


def test_serve_stop_leaves_nothing(lab: Lab, first: dict[str, Any]) -> None:
    assert lab.processes()
    lab.serve("stop")
    assert not lab.processes()
    with pytest.raises(requests.ConnectionError):
        lab.predict()
