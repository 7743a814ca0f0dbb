import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paraserve.components import storage
from paraserve.components.train.cluster.tf_config import TaskConfig, from_environment

CLUSTER = {"chief": ["a:1"], "ps": ["b:2", "c:3"], "evaluator": ["d:4"]}


def test_reads_tf_config_and_leaves_the_evaluator_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 1}}))

    task = from_environment()

    assert (task.job, task.index, task.address) == ("ps", 1, "c:3")
    assert "evaluator" not in task.cluster


def test_writes_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TaskConfig(cluster={"ps": ["b:2", "c:3"]}, job="ps", index=0)
    monkeypatch.setenv("TF_CONFIG", task.to_json())

    assert from_environment() == task


@pytest.mark.parametrize("text", ["", "{", "{}", '{"cluster": {"ps": ["a:1"]}}', '{"cluster": 1, "task": {"type": "ps"}}'])
def test_says_what_a_bad_tf_config_should_be(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)

    with pytest.raises(ValueError, match=r"TF_CONFIG is .*; set it to \{\"cluster\""):
        from_environment()


def test_refuses_a_task_that_the_cluster_does_not_have() -> None:
    with pytest.raises(ValueError, match="names task 2 of job 'ps', which has 2 addresses"):
        TaskConfig(cluster=CLUSTER, job="ps", index=2)


@pytest.mark.slow
def test_a_server_started_cold_says_that_its_port_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        cluster = {"ps": [f"127.0.0.1:{taken.getsockname()[1]}"]}
        environment = {**os.environ, "TF_CONFIG": TaskConfig(cluster=cluster, job="ps", index=0).to_json()}
        server = subprocess.run(
            [sys.executable, "-m", "paraserve.components.train.server"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert server.returncode == 1
    assert "Could not start gRPC server" in server.stderr


@pytest.mark.slow
def test_a_worker_started_cold_has_an_agent_that_fetches(tmp_path: Path, bucket: str) -> None:
    import hashlib

    from paraserve.components.train.cluster.agent import Agent, Wanted, address_of
    from paraserve.components.train.cluster.local import _free_addresses

    storage.write_bytes(f"{bucket}/shard", b"rows")
    place, digest = f"{bucket}/shard", hashlib.sha256(b"rows").hexdigest()
    (address,) = _free_addresses(1)
    task = TaskConfig(cluster={"worker": [address]}, job="worker", index=0)
    environment = {**os.environ, "TF_CONFIG": task.to_json(), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-m", "paraserve.components.train.server"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"worker 0 serves at {address}\n"
            with contextlib.closing(Agent(address_of(address))) as asked:
                path = asked.fetch(Wanted(place=place, bytes=4, sha256=digest, disk_bytes=4))()
            assert Path(path).read_bytes() == b"rows"
            assert path.startswith(str(tmp_path / "paraserve-agent-"))
        finally:
            server.kill()


def test_no_agent_listens_where_a_server_does() -> None:
    from paraserve.components.train.cluster.agent import address_of
    from paraserve.components.train.cluster.local import _free_addresses

    addresses = _free_addresses(300)

    assert len({*addresses, *map(address_of, addresses)}) == 600


@pytest.mark.slow
def test_local_servers_start_say_who_was_killed_and_stop(training: Any) -> None:
    training.call(_start_kill_stop)


def _start_kill_stop() -> None:
    import signal

    import psutil

    from paraserve.components.train.cluster.local import LocalCluster

    cluster = LocalCluster(workers=2, parameter_servers=1)
    pids = dict(cluster.pids)
    assert len(set(pids.values())) == 3
    assert all(psutil.pid_exists(pid) for pid in pids.values())
    assert cluster.cluster_spec().as_dict() == cluster.addresses
    assert cluster.lost() == {}

    os.kill(pids["/job:worker/replica:0/task:1"], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while not (lost := cluster.lost()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(lost) == ["/job:worker/replica:0/task:1"]
    assert "killed by SIGKILL" in lost["/job:worker/replica:0/task:1"]

    cluster.stop()
    cluster.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
