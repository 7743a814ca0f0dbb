"""Starts contenders, each in a process and, where allowed, in network namespaces of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.train import network
from benchmarks.train.meter import Figures
from benchmarks.train.workload import CACHE, ROOT, Workload

OURS, STOCK, SINGLE, PYTORCH = "ours", "stock", "single", "pytorch"
"""Each is the module that runs it."""
TORCH = CACHE / "torch"
"""Where the make target installs the dependency group `bench`, away from the product's packages."""
TIMEOUT_SECONDS = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One contender under one workload; what is measured once in each round."""

    name: str
    """One of the above."""
    workload: Workload
    network: str = network.LOOPBACK
    """One of network's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For ours: what differs from the shipped defaults."""

    @property
    def title(self) -> str:
        said = [f"{key}={value}" for key, value in self.settings.items()]
        base = Workload()
        said += [
            f"{f} {getattr(self.workload, f)}"
            for f in ("batch_size", "dimension")
            if getattr(self.workload, f) != getattr(base, f)
        ]
        return " ".join([self.name, *said, *([] if self.network == network.LOOPBACK else [self.network])])

    def obstacle(self) -> str | None:
        """What this machine lacks for it, and the remedy."""
        if self.name == PYTORCH and not TORCH.exists():
            return "PyTorch is not installed; `make bench-train` does it"
        if self.network != network.LOOPBACK and not network.prefix():
            return "this user may make no network namespaces; run as root"
        return None


def measure(case: Case) -> Figures:
    """One measurement. Raises RuntimeError with the contender's last lines when it fails."""
    _ = case.workload.shards  # drawn before anything is timed
    prefix = network.prefix()
    with tempfile.TemporaryDirectory(prefix="paraserve-bench-") as folder:
        output = Path(folder) / "figures.json"
        kind = case.network if prefix else network.SHARED
        command = [*prefix, sys.executable, "-m", "benchmarks.train.contender", case.name, case.workload.to_json()]
        ended = subprocess.run(
            [*command, kind, json.dumps(dict(case.settings)), str(output)],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(TORCH) if case.name == PYTORCH else ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        if not output.exists():
            raise RuntimeError(f"{case.title} failed with exit code {ended.returncode}:\n{ended.stdout[-4000:]}")
        return Figures(**json.loads(output.read_text()))
