"""Measures contenders, each in a process and, where allowed, in network namespaces of its own."""

import dataclasses
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.train import network
from benchmarks.train.child import call
from benchmarks.train.meter import Figures
from benchmarks.train.workload import CACHE, Workload, pin

OURS, STOCK, SINGLE, PYTORCH = "ours", "stock", "single", "pytorch"
"""Each is the module that runs it."""
TORCH = CACHE / "torch"
"""Where the make target installs the dependency group `bench`, away from the product's packages."""


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
        """Tells cases apart."""
        said = [*self.workload.differences(), *(f"{name} {value}" for name, value in self.settings.items())]
        said += [] if self.network == network.LOOPBACK else [self.network]
        return ", ".join([self.name, *said])

    @property
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
    kind = case.network if prefix else network.SHARED
    figures = call(
        f"{__name__}:run",
        *(case.name, case.workload.to_json(), kind, json.dumps(dict(case.settings))),
        prefix=prefix,
        python_path=str(TORCH) if case.name == PYTORCH else "",
    )
    return Figures(**figures)


def run(name: str, workload: str, kind: str, settings: str) -> dict[str, Any]:
    """Runs one contender in this process; its figures."""
    wanted, changed = Workload.from_json(workload), json.loads(settings)
    pin(wanted.cores)
    contender = importlib.import_module(f"benchmarks.train.{name}")
    figures = contender.run(wanted, network.build(kind), *([changed] if name == OURS else []))
    return dataclasses.asdict(figures)
