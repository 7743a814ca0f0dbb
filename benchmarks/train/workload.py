"""What every contender trains: data, net and machine, the same for all."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.train.data import Log, packed_log

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "bench"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A net of embeddings, two hidden layers and one logit, trained by Adagrad on a synthetic log, in float32."""

    log: Log = field(default_factory=Log)
    dimension: int = 16
    """Of each embedding."""
    dynamic: bool = True
    """Whether ours keeps them in dynamic tables, where every key has a row of its own, or in static ones as the peers do."""
    batch_size: int = 1024
    hidden: tuple[int, ...] = (256, 128)
    learning_rate: float = 0.2
    embedding_init: float = 0.01
    """Standard deviation of the initial rows."""
    workers: int = 2
    parameter_servers: int = 2
    cores: int = 2
    """All processes of a contender share so many cores."""
    warm_examples: int = 300_000
    """Trained before measuring starts."""
    seconds: float = 10.0
    """Measured, in the steady state."""

    @property
    def peer_shards(self) -> int:
        """Peers serve so many shards again and again, all in memory by the end of the warm-up; ours reads every one."""
        return max(self.warm_examples // self.log.shard_rows, self.workers)

    @property
    def rows(self) -> int:
        """Embedding rows of all columns."""
        return self.log.columns * self.log.values

    @property
    def shards(self) -> Path:
        """The folder of the packed data set, drawn at first use."""
        return packed_log(CACHE, self.log, self.dimension, self.dynamic)

    def differences(self) -> list[str]:
        """What a reader has to know of this workload, beside the default one."""
        words = {"batch_size": "batch", "dimension": "dimension", "dynamic": "dynamic"}
        changed = {name: value for name in words if (value := getattr(self, name)) != getattr(Workload(), name)}
        said = [f"{words[name]} {value}" for name, value in changed.items()]
        return [*said, f"{self.log.present_keys:,} keys"] if self.log.present_keys else said

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        values: Mapping[str, Any] = json.loads(text)
        return cls(**{**values, "log": Log(**values["log"]), "hidden": tuple(values["hidden"])})


def pin(cores: int) -> None:
    """Keeps this process and its children on so many cores of the machine."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
