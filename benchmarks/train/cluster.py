"""Starts a contender's workers and parameter servers as forks of its coordinator, over the network that they are to use."""

import ctypes
import itertools
import os
import random
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from benchmarks.train.network import Network
from paraserve.components.train.cluster import COORDINATOR, PARAMETER_SERVER, WORKER, device
from paraserve.components.train.cluster.agent import PORT_OFFSET
from paraserve.components.train.cluster.tf_config import VARIABLE, TaskConfig

START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class BenchCluster:
    """A Cluster of this machine's processes; they end with the coordinator. Make one before TensorFlow's first operation.

    Args:
        serve: what a server's process does, with its TF_CONFIG set; it may keep files in the folder that it is given.
    """

    def __init__(self, network: Network, workers: int, parameter_servers: int, serve: Callable[[Path], None]):
        jobs = {COORDINATOR: 1, WORKER: workers, PARAMETER_SERVER: parameter_servers}
        ports = iter(_free_ports(sum(jobs.values())))
        self.addresses = {job: [f"{network.hosts[job]}:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
        self._serve, self._network = serve, network
        network.open(self.addresses)
        self._folder = tempfile.TemporaryDirectory(prefix="paraserve-bench-")
        self._pids = {
            device(job, index): self._start(job, index) for job in (PARAMETER_SERVER, WORKER) for index in range(jobs[job])
        }
        self._wait_until_ready()

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec(self.addresses)

    @property
    def roles(self) -> dict[str, list[int]]:
        """Process ids by role, the coordinator's included."""
        roles: dict[str, list[int]] = {
            "coordinator": [os.getpid()],
            "proxy": self._network.proxies,
            WORKER: [],
            PARAMETER_SERVER: [],
        }
        for name, pid in self._pids.items():
            roles[WORKER if f"/job:{WORKER}/" in name else PARAMETER_SERVER].append(pid)
        return roles

    def lost(self) -> dict[str, str]:
        gone = [name for name, pid in self._pids.items() if os.waitpid(pid, os.WNOHANG)[0]]
        for name in gone:
            del self._pids[name]
        return {name: self._log(name).read_text(errors="replace")[-2000:] for name in gone}

    def stop(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()
        self._folder.cleanup()

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name.strip('/').replace('/', '-')}.log"

    def _start(self, job: str, index: int) -> int:
        pid = os.fork()
        if pid == 0:
            self._be_server(TaskConfig(cluster=self.addresses, job=job, index=index))
        return pid

    def _be_server(self, task: TaskConfig) -> None:
        """What a forked child does; never returns."""
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._network.enter(task.job)
            log = self._log(device(task.job, task.index))
            output = os.open(log, os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ[VARIABLE] = task.to_json()
            self._serve(log.with_suffix(".files"))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        waiting = [address for job in (PARAMETER_SERVER, WORKER) for address in self.addresses[job]]
        while waiting := [address for address in waiting if not _answers(address)]:
            if lost := self.lost():
                raise RuntimeError(f"servers did not start: {lost}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from {waiting} within {START_SECONDS:.0f} s")
            time.sleep(0.02)


def connect(cluster: BenchCluster, partitioner: object = None) -> tf.distribute.ParameterServerStrategy:
    """Connects this process as the coordinator."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster.cluster_spec(), task_type=COORDINATOR, task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, nor on those that workers' agents take beside them."""
    some = random.sample(range(15000, 15000 + PORT_OFFSET), k=PORT_OFFSET)
    free = (port for port in some if _is_free(port) and _is_free(port + PORT_OFFSET))
    return list(itertools.islice(free, count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
