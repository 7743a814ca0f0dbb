"""Rollouts on this machine: real servers, a real Envoy, and a client that keeps asking and must never see a failure."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import requests

from paraserve.components.deploy import local, processes
from paraserve.components.deploy.config import DeployConfig, RolloutConfig
from paraserve.components.deploy.job import deploy
from paraserve.components.deploy.journal import RolloutResult, read_journal
from paraserve.components.deploy.local import LocalTarget
from paraserve.components.deploy.rollout import RolloutError
from paraserve.components.register.registry import Registry

pytestmark = pytest.mark.slow
NAME = "clicks"
ROW = {"user_id": "196", "age": "49", "genres": "Comedy|Drama"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Lab:
    """One machine's serving folder and registry."""

    folder: Path
    models: Path
    shards: str
    port: int = field(default_factory=free_port)
    runs: int = 0

    @property
    def serving(self) -> Path:
        return self.folder / "serving"

    @property
    def registry(self) -> Registry:
        return Registry(str(self.folder / "registry"))

    def champion(self) -> str | None:
        return self.registry.aliases(NAME).get("champion")

    def config(self, model: str, **settings: object) -> DeployConfig:
        registered = self.registry.register(NAME, self.models / model / "1", {}, "setup")
        self.runs += 1
        values = {
            "version": registered.version,
            "model_uri": registered.model_uri,
            "shards": self.shards,
            "registry": self.registry.place,
            "model_name": NAME,
            "serving": str(self.serving),
            "run_id": f"run-{self.runs}",
            # The tests share two cores with others: latency is the judge's own tests' business.
            "rollout": RolloutConfig(step_requests=200, max_latency_increase=20),
            "serving_port": self.port,
        }
        return DeployConfig(**{**values, **settings})  # type: ignore[arg-type]

    def challenger(self) -> str:
        """A good model that is not the champion."""
        good = self.registry.register(NAME, self.models / "good" / "1", {}, "setup").version
        return "better" if self.champion() == good else "good"

    def ask(self) -> requests.Response:
        url = f"http://127.0.0.1:{self.port}/v1/models/{NAME}:predict"
        return requests.post(url, json={"instances": [ROW]}, timeout=10)

    def processes(self) -> dict[str, psutil.Process]:
        return processes.find(self.serving)

    def is_served_by(self, version: str | None) -> bool:
        """Whether the endpoint is settled: this version alone, with all traffic."""
        status = local.status(str(self.serving))
        settled = status["serving"] and status["version"] == version and len(self.processes()) == 2
        return bool(settled and status["split"]["canary"] is None and self.ask().ok)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, models: Path, shards: str) -> Iterator[Lab]:
    """With a champion that serves."""
    made = Lab(tmp_path_factory.mktemp("lab"), models, shards)
    try:
        result = deploy(made.config("good"))
        assert (result.decision, result.steps, result.failed_requests) == ("promoted", (100,), 0)
        yield made
    finally:
        local.stop(str(made.serving))
    assert made.processes() == {}


@pytest.fixture
def empty(tmp_path: Path, models: Path, shards: str) -> Iterator[Lab]:
    """Where nothing was ever deployed."""
    made = Lab(tmp_path, models, shards)
    try:
        yield made
    finally:
        local.stop(str(made.serving))


class Client(threading.Thread):
    """Asks the endpoint all the time, and remembers every answer that was not right."""

    def __init__(self, lab: Lab):
        super().__init__()
        self.lab, self.stopped, self.asked, self.failures = lab, threading.Event(), 0, []  # type: ignore[var-annotated]

    def run(self) -> None:
        while not self.stopped.wait(0.01):
            self.asked += 1
            try:
                response = self.lab.ask()
                if not response.ok:
                    self.failures.append(response.text)
            except requests.RequestException as error:
                self.failures.append(repr(error))

    def __enter__(self) -> "Client":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


def check_rolled_back(lab: Lab, config: DeployConfig) -> RolloutResult:
    """Deploys with a client beside: it is rolled back, nobody saw a failure, and the champion serves on."""
    before = lab.champion()
    with Client(lab) as client:
        result = deploy(config)
    assert result.decision == "rolled_back"
    assert (result.failed_requests, client.failures) == (0, [])
    assert client.asked > 20
    assert lab.champion() == before
    assert lab.is_served_by(before)
    return result


def test_a_good_canary_is_promoted_step_by_step(lab: Lab) -> None:
    config = lab.config(lab.challenger())
    with Client(lab) as client:
        result = deploy(config)

    assert (result.decision, result.steps, result.failed_requests) == ("promoted", (10, 50, 100), 0)
    assert result.requests["stable"] > 200  # 90 % and 50 % of two steps of 220
    assert result.requests["canary"] > 250
    assert client.failures == []
    assert lab.champion() == config.version
    assert lab.is_served_by(config.version)
    assert deploy(config) == result  # run again, it finds its earlier work
    again = deploy(lab.config("better" if lab.challenger() == "good" else "good"))
    assert (again.decision, again.steps) == ("promoted", ())
    assert "champion already" in again.reason


def test_a_canary_that_fails_is_rolled_back(lab: Lab) -> None:
    config = lab.config(lab.challenger(), drill_canary_errors=0.3)
    result = check_rolled_back(lab, config)

    assert result.steps in ((10,), (10, 50))  # a tenth of 220 requests, of which three in ten fail, may be too few to tell
    assert "it failed" in result.reason
    assert deploy(config) == result  # the same run's step, tried again, does not start another rollout


def test_the_component_records_a_rollback_and_fails(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paraserve.components.deploy.component import deploy as component

    monkeypatch.setenv("PARASERVE_RUN_ID", "drill")
    config = lab.config(lab.challenger(), drill_canary_errors=1.0)
    taken = ("version", "model_uri", "shards", "registry", "model_name", "serving", "serving_port", "drill_canary_errors")
    settings = {name: getattr(config, name) for name in taken}
    with Client(lab) as client, pytest.raises(RolloutError, match=f"version {config.version} of clicks was rolled back"):
        component.python_func(**settings, run_folder=str(tmp_path), step_requests=200, max_latency_increase=20.0)

    assert client.failures == []
    assert lab.is_served_by(lab.champion())
    record = json.loads((tmp_path / "drill" / "steps" / "deploy.json").read_text())
    assert (record["state"], record["error"]["type"]) == ("failed", "RolloutError")
    rollout = record["outputs"]["rollout"]
    assert (rollout["decision"], rollout["steps"], rollout["failed_requests"]) == ("rolled_back", [10], 0)
    assert rollout["requests"]["canary"] > 0


def test_a_canary_killed_in_mid_step_is_rolled_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    set_weight = LocalTarget.set_weight

    def and_kill(target: LocalTarget, percent: int) -> None:
        set_weight(target, percent)
        if percent == 50:
            threading.Timer(0.3, lab.processes()[target._slot].kill).start()

    monkeypatch.setattr(LocalTarget, "set_weight", and_kill)
    result = check_rolled_back(lab, lab.config(lab.challenger()))

    assert result.steps == (10, 50)
    assert "process is gone" in result.reason


@pytest.mark.parametrize(
    ("model", "said"),
    [("broken", "did not come up"), ("nan", "no probabilities")],
)
def test_a_model_that_cannot_serve_is_rolled_back(lab: Lab, model: str, said: str) -> None:
    assert said in check_rolled_back(lab, lab.config(model)).reason


def test_a_first_model_that_fails_is_taken_down(empty: Lab) -> None:
    result = deploy(empty.config("constant"))

    assert (result.decision, result.steps) == ("rolled_back", (100,))
    assert "0.5 to each of 200 rows" in result.reason
    assert empty.champion() is None
    assert empty.processes() == {}
    assert not local.status(str(empty.serving))["serving"]


def test_a_port_in_use_is_said_before_anything_starts(empty: Lab) -> None:
    with socket.create_server(("127.0.0.1", empty.port)), pytest.raises(ValueError, match=f"port {empty.port} cannot be used"):
        deploy(empty.config("good"))

    assert empty.processes() == {}
    assert read_journal(str(empty.serving)) == {}


def test_two_rollouts_at_once_are_refused(empty: Lab) -> None:
    from paraserve.components.deploy.endpoint import locked

    with locked(empty.serving), pytest.raises(ValueError, match="at work"):
        deploy(empty.config("good"))


def test_a_folder_of_another_model_is_refused(lab: Lab) -> None:
    other = lab.registry.register("other", lab.models / "good" / "1", {}, "setup")
    config = lab.config("good", model_name="other", version=other.version)
    with pytest.raises(ValueError, match="is the endpoint of 'clicks'"):
        deploy(config)


def test_stop_leaves_no_process_and_no_port_and_recover_starts_it_again(lab: Lab) -> None:
    local.stop(str(lab.serving))

    assert lab.processes() == {}
    with socket.create_server(("127.0.0.1", lab.port)):
        pass
    assert not local.status(str(lab.serving))["serving"]
    local.recover(str(lab.serving))
    assert lab.is_served_by(lab.champion())


def test_stop_finds_the_processes_of_a_folder_that_was_removed(empty: Lab) -> None:
    (empty.serving / "logs").mkdir(parents=True)
    process = processes.start(empty.serving, "a", ["sleep", "60"], empty.serving / "logs" / "a.log")
    shutil.rmtree(empty.serving)
    local.stop(str(empty.serving))

    assert not processes.alive(process)
    assert not empty.serving.exists()


def test_an_envoy_that_died_is_started_again(lab: Lab) -> None:
    server = lab.processes()
    envoy = server.pop("envoy")
    envoy.kill()
    while processes.alive(envoy):
        time.sleep(0.01)
    assert not local.status(str(lab.serving))["serving"]

    local.recover(str(lab.serving))

    assert lab.is_served_by(lab.champion())
    assert lab.processes().items() > server.items()  # the champion's server was left alone


# The deploying process kills itself where each of these stands; the kill is real, so no handler of it runs.
KILLED_DEPLOY = """
import os, pickle, signal, sys
from paraserve.components.deploy import endpoint, job, local
target, phase = local.LocalTarget, sys.argv[2]

def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)

def die_at(percent):
    observe = target.observe
    def observed(self, replies):
        return die() if self.served.state.split.percent == percent else observe(self, replies)
    target.observe = observed

if phase == "starting": endpoint.Endpoint._wait_available = die
elif phase == "committing": job.Registry.promote = die
elif phase == "committed": target.promote = die
else: die_at(int(phase))
job.deploy(pickle.loads(open(sys.argv[1], "rb").read()))
"""


def kill_while(lab: Lab, phase: str, config: DeployConfig) -> None:
    import pickle

    path = lab.folder / "config.pickle"
    path.write_bytes(pickle.dumps(config))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", KILLED_DEPLOY, str(path), phase], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("phase", ["starting", "10", "committing", "committed"])
def test_after_a_killed_rollout_the_champion_serves_alone(lab: Lab, phase: str) -> None:
    before, config = lab.champion(), lab.config(lab.challenger())
    with Client(lab) as client:
        kill_while(lab, phase, config)
        assert len(lab.processes()) == 3
        local.recover(str(lab.serving))

    expected = config.version if phase == "committed" else before
    assert lab.champion() == expected
    assert lab.is_served_by(expected)
    assert client.failures == []


def test_a_killed_step_that_runs_again_goes_on(lab: Lab) -> None:
    config = lab.config(lab.challenger())
    kill_while(lab, "committed", config)
    result = deploy(config)

    assert (result.decision, result.steps) == ("promoted", (10, 50, 100))
    assert lab.is_served_by(config.version)


def test_a_killed_first_rollout_leaves_nothing(empty: Lab) -> None:
    kill_while(empty, "100", empty.config("good"))
    assert len(empty.processes()) == 2
    local.recover(str(empty.serving))

    assert empty.processes() == {}
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", empty.port)):
                return
    raise AssertionError("the port is still open")
