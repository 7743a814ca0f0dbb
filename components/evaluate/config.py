"""Settings of the evaluate step."""

import dataclasses
import math
from dataclasses import dataclass

from paraserve.components.register.registry import check_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """What a model must reach to be promoted."""

    min_auc: float = 0.55
    """Least area under the ROC curve on the test split, 0 to 1; 0.5 is guessing."""
    max_logloss: float = 1.0
    """Most log loss in nats, above 0; always predicting the base rate gives at most 0.693."""
    max_calibration_error: float = 0.1
    """Most expected calibration error, 0 to 1."""
    max_auc_drop: float = 0.002
    """Most by which the AUC may be below the champion's, -1 to 1; a negative number demands a gain."""
    max_logloss_increase: float = 0.005
    """Most by which the log loss may be above the champion's, in nats, -1 to 1; a negative number demands a gain."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("min_auc", 0.0, 1.0),
            ("max_logloss", 0.0, math.inf),
            ("max_calibration_error", 0.0, 1.0),
            ("max_auc_drop", -1.0, 1.0),
            ("max_logloss_increase", -1.0, 1.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"`{name}` is {value}; give a number from {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig:
    """What to evaluate, on what, against whom."""

    model: str
    """Local folder of the SavedModel."""
    shards: str
    """Place of the packed data set."""
    registry: str
    """Place of the registry that knows the champion."""
    model_name: str
    """Its name there."""
    report: str
    """Local file that the HTML report is written to."""
    thresholds: Thresholds = dataclasses.field(default_factory=Thresholds)
    slice_columns: tuple[str, ...] = ()
    """Categorical columns whose values are looked at one by one; at most 20."""

    def __post_init__(self) -> None:
        check_name(self.model_name)
        if len(self.slice_columns) > 20:  # they travel in the step's output, which Kubernetes keeps small
            raise ValueError(f"`slice_columns` names {len(self.slice_columns)} columns; name at most 20")
        if len(set(self.slice_columns)) < len(self.slice_columns):
            raise ValueError(f"`slice_columns` names a column twice: {', '.join(self.slice_columns)}; name each once")


def columns_of(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list, which may be empty."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
