"""Starts contenders, each in a process and, where allowed, a network namespace of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.train import network
from benchmarks.train.meter import Figures
from benchmarks.train.workload import CACHE, ROOT, Workload

TORCH = CACHE / "torch"
"""Where the make target installs the dependency group `bench`, away from the product's packages."""
TIMEOUT_SECONDS = 600


def measure(name: str, workload: Workload, settings: Mapping[str, Any] | None = None) -> Figures:
    """One measurement of one contender. Raises RuntimeError with its last lines when it fails."""
    _ = workload.shards  # drawn here, before the clock of anyone runs
    prefix = network.prefix()
    with tempfile.TemporaryDirectory(prefix="paraserve-bench-") as folder:
        output = Path(folder) / "figures.json"
        command = [*(prefix or ()), sys.executable, "-m", "benchmarks.train.contender", name, workload.to_json()]
        command += ["1" if prefix else "0", json.dumps(settings or {}), str(output)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(TORCH) if name == "pytorch" else ""}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        if not output.exists():
            raise RuntimeError(f"{name} failed with exit code {ended.returncode}:\n{ended.stdout[-4000:]}")
        return Figures(**json.loads(output.read_text()))
