"""The processes of an endpoint: detached, so that they outlive the step, and found again in the system's own process table.

Each carries a mark in its environment, PARASERVE_ENDPOINT=FOLDER:ROLE. So none can be lost by a kill between its start and the
writing of a file, and a reused process id is never taken for one of ours.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

MARK = "PARASERVE_ENDPOINT"
# The child waits until its parent is gone before it becomes the program: Envoy asks to die with its parent (PR_SET_PDEATHSIG).
_LAUNCH = """
import os, sys, time
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    while os.getppid() == parent:
        time.sleep(0.001)
    os.execvp(sys.argv[1], sys.argv[1:])
os._exit(0)
"""
# What kfp sets for its steps means nothing to a server, and the run's temporary folder goes away before the server does.
_NOT_INHERITED = ("_KFP_RUNTIME", "TMPDIR", "PARASERVE_RUN_ID")


def start(folder: Path, role: str, command: Sequence[str], log: Path) -> psutil.Process:
    """Starts a process of the endpoint in `folder`, with its output appended to `log`, and returns once it is found running."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment[MARK] = f"{folder}:{role}"
    with log.open("ab") as output:
        subprocess.run(
            [sys.executable, "-S", "-c", _LAUNCH, *command],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
        )
    deadline = time.monotonic() + 5
    while (process := find(folder).get(role)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{command[0]} ended at once; see {log}:\n{tail(log)}")
        time.sleep(0.02)
    return process


def find(folder: Path) -> dict[str, psutil.Process]:
    """The endpoint's living processes by role."""
    found = {}
    for process in psutil.process_iter():
        try:
            place, _, role = process.environ().get(MARK, "").rpartition(":")
            if place == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found[role] = process
        except (psutil.Error, OSError):  # gone meanwhile, or somebody else's
            continue
    return found


def stop(process: psutil.Process, grace: float) -> None:
    """Asks a process to end, and kills it after `grace` seconds; returns when it is gone."""
    try:
        process.terminate()  # psutil compares start times first, so a reused id is safe
        end = time.monotonic() + grace
        while alive(process):
            if time.monotonic() > end:
                process.kill()
            time.sleep(0.02)
    except psutil.NoSuchProcess:
        pass


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended but was not collected by its parent does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log that are not TensorFlow's start-up chatter; "" without a log."""
    if not log.exists():
        return ""
    kept = [line for line in log.read_text(errors="replace").splitlines() if line and "0000 00:00:" not in line]
    return "\n".join(kept[-lines:])
