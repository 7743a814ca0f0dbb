"""The rollout's journal: how far it came, for people who look at it and for the step that runs again."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paraserve.components import storage

FILE = "rollout.json"
PROMOTING, PROMOTED, ROLLED_BACK = "promoting", "promoted", "rolled_back"


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutResult:
    """How a rollout ended."""

    decision: str
    """promoted or rolled_back; "" while it is open."""
    reason: str
    steps: tuple[int, ...]
    """The weights that were reached, percent, as (10, 50, 100)."""
    requests: Mapping[str, int]
    """First attempts by side, warm-up included: {"stable": n, "canary": n}."""
    failed_requests: int
    """Requests of the replay whose client saw a failure."""
    endpoint: str

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "steps": list(self.steps)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RolloutResult":
        return cls(**{**values, "steps": tuple(values["steps"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """A JSON file in the serving folder about the one rollout that is or was last under way."""

    serving: str
    """The serving folder: a path or gs:// address."""
    run_id: str
    version: str

    def write(self, phase: str, result: RolloutResult) -> None:
        content = {"run_id": self.run_id, "version": self.version, "phase": phase, "result": result.to_json()}
        storage.write_bytes(storage.join(self.serving, FILE), json.dumps(content, indent=1).encode())

    def decided(self) -> tuple[str, RolloutResult] | None:
        """The phase and result when this very run has rolled back, promoted or begun to promote this version; else None."""
        values = read_journal(self.serving)
        if (values.get("run_id"), values.get("version")) != (self.run_id, self.version):
            return None
        if values["phase"] not in (PROMOTING, PROMOTED, ROLLED_BACK):
            return None
        return values["phase"], RolloutResult.from_json(values["result"])


def read_journal(serving: str) -> dict[str, Any]:
    """The journal of the last rollout into this serving folder; {} when there was none."""
    try:
        content: dict[str, Any] = json.loads(storage.read_bytes(storage.join(serving, FILE)))
    except FileNotFoundError:
        return {}
    return content
