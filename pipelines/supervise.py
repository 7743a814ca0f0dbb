"""Starts the pipeline's process in a process group of its own, waits for it, and ends the whole group whatever happens."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TERM_SECONDS, KILL_SECONDS = 5.0, 10.0
POLL_SECONDS = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stop_requests() -> Iterator[list[str]]:
    """Collects the names of the signals that ask this process to stop (SIGINT is Ctrl-C), in place of obeying them."""
    received: list[str] = []
    before = {number: signal.signal(number, lambda n, _: received.append(signal.Signals(n).name)) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_supervised(job: Mapping[str, Any], environment: Mapping[str, str], lock: int, received: Sequence[str]) -> int:
    """Runs `paraserve.pipelines.local` with `job` and returns its exit code; no process of its group lives then.

    As soon as there is something in `received` (see `stop_requests`) the group is terminated, then killed. When this process
    itself is killed, the pipe to the pipeline's process closes, and that process kills the group. It inherits `lock`, a file
    descriptor, so that the folder stays locked until it is gone.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "paraserve.pipelines.local"],
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(lock,),
        env={**environment, "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])},
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        while process.poll() is None and not received:
            time.sleep(POLL_SECONDS)
    finally:
        end_group(process)
        process.stdin.close()
    return process.wait()


def end_group(leader: subprocess.Popen[bytes]) -> None:
    """Terminates every process of the group that `leader` leads, and kills those that do not end in time."""
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        while _alive(leader) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, number)
            time.sleep(POLL_SECONDS)


def _alive(leader: subprocess.Popen[bytes]) -> bool:
    """Whether a process of the group still runs; a dead one that nobody reaped does not."""
    import psutil  # here, because the light image does without it and imports this package's command line

    leader.poll()
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == leader.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False
