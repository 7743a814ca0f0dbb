"""Servers as processes of this machine, forked from the coordinator after TensorFlow's import: ready in 0.2 s, not in 6."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import tensorflow as tf

from paraserve.components.train.cluster import COORDINATOR, PARAMETER_SERVER, WORKER, device
from paraserve.components.train.cluster.agent import PORT_OFFSET
from paraserve.components.train.cluster.tf_config import VARIABLE, TaskConfig
from paraserve.components.train.server import serve

START_SECONDS = 60.0
"""How long the servers may take until their ports answer."""
_PR_SET_PDEATHSIG = 1


class LocalCluster:
    """Workers and parameter servers as child processes; they end with the coordinator, however it ends (Linux).

    Make one before TensorFlow runs its first operation: a process with TensorFlow's threads cannot be forked.
    """

    def __init__(self, workers: int, parameter_servers: int):
        self._folder = tempfile.TemporaryDirectory(prefix="paraserve-servers-")
        self._pids: dict[str, int] = {}
        self._causes: dict[str, str] = {}
        jobs = {COORDINATOR: 1, PARAMETER_SERVER: parameter_servers, WORKER: workers}
        free = iter(_free_addresses(sum(jobs.values())))
        self.addresses = {job: [next(free) for _ in range(n)] for job, n in jobs.items()}
        try:
            for job in (PARAMETER_SERVER, WORKER):
                for index in range(jobs[job]):
                    self._pids[device(job, index)] = self._start(job, index)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec(self.addresses)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the servers that are not known to be gone, by device name."""
        return {name: pid for name, pid in self._pids.items() if name not in self._causes}

    def lost(self) -> dict[str, str]:
        for name, pid in self.pids.items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                self._causes[name] = f"{how}; its last lines: {self._log_tail(name)}"
        return dict(self._causes)

    def stop(self) -> None:
        # SIGKILL at once: a server holds nothing that outlives the run, and TensorFlow's has no orderly end.
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in self.pids.items():
            os.waitpid(pid, 0)
            self._causes[name] = "stopped"
        self._folder.cleanup()

    def _start(self, job: str, index: int) -> int:
        task = TaskConfig(cluster=self.addresses, job=job, index=index)
        log = self._log_path(device(job, index))
        files = log.with_suffix(".files")
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_server(task, log, files, parent)
        return pid

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        waiting = [address for job in (PARAMETER_SERVER, WORKER) for address in self.addresses[job]]
        while waiting := [address for address in waiting if not _answers(address)]:
            if lost := self.lost():
                raise RuntimeError(f"servers did not start: {lost}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no answer from the servers at {waiting} within {START_SECONDS:.0f} s; is the machine overloaded?"
                )
            time.sleep(0.02)

    def _log_path(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name.strip('/').replace('/', '-').replace(':', '-')}.log"

    def _log_tail(self, name: str) -> str:
        path = self._log_path(name)
        return " | ".join(path.read_text(errors="replace").splitlines()[-3:]) if path.exists() else "none"


def _be_server(task: TaskConfig, log: Path, files: Path, parent: int) -> None:
    """What a forked child does; never returns."""
    try:
        # The kernel ends this process when the coordinator is gone, even by kill -9.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ[VARIABLE] = task.to_json()
        if os.getppid() == parent:  # else it was gone before the kernel was asked
            serve(files)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _free_addresses(count: int) -> list[str]:
    """Loopback addresses with ports that nobody listens on, nor on those of their agents.

    From below the range that the kernel gives to outgoing connections, so that none of those takes one in the meantime.
    """
    ports: list[int] = []
    taken: set[int] = set()
    for port in random.sample(range(15000, 32000 - PORT_OFFSET), k=17000 - PORT_OFFSET):
        both = {port, port + PORT_OFFSET}
        if not both & taken and all(_is_free(p) for p in both):
            ports.append(port)
            taken |= both
        if len(ports) == count:
            return [f"127.0.0.1:{port}" for port in ports]
    raise RuntimeError("no free ports between 15000 and 32000; end what listens on them")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
