"""What an evaluation found: everything that the outputs and the report are made of."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from paraserve.components.evaluate.config import Thresholds
from paraserve.components.evaluate.gate import Champion, Gate
from paraserve.components.evaluate.metrics import Labels, Probabilities, Scores
from paraserve.components.evaluate.slices import Slice
from paraserve.components.exported import Description
from paraserve.components.manifest import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A model on the test split, against the champion."""

    model_name: str
    gate: Gate
    labels: Labels
    """float32 [n]."""
    probabilities: Probabilities
    """float64 [n], usable (see metrics)."""
    scores: Scores
    champion: Champion | None
    champion_probabilities: Probabilities | None
    """float64 [n], usable; None where it was not judged."""
    slices: tuple[Slice, ...]
    thresholds: Thresholds
    description: Description
    manifest: Manifest
    content_digest: str
    """Of the model (see register.content)."""

    def champion_json(self) -> dict[str, Any] | None:
        if self.champion is None:
            return None
        scores = self.champion.scores
        return {
            "version": self.champion.version,
            "same": self.champion.same,
            "differences": list(self.champion.differences),
            "metrics": scores.to_json() if scores else None,
        }

    def to_json(self) -> str:
        """For register, as it goes from step to step: no list in it grows with the data."""
        content = {
            "decision": self.gate.decision,
            "reasons": self.gate.reasons,
            "metrics": self.scores.to_json(),
            "champion": self.champion_json(),
            "thresholds": dataclasses.asdict(self.thresholds),
            "slices": [part.to_json() for part in self.slices],
            "data_digest": self.manifest.data_digest,
            "content_digest": self.content_digest,
        }
        return json.dumps(content, allow_nan=False)
