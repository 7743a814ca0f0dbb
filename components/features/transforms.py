"""Transforms of dense values, each defined once over an array namespace, so that NumPy (ingest) and TensorFlow (training,
serving) execute the same formula.

All arithmetic is float32. A missing value (NaN) stays missing through every transform and becomes 0.0 at the end, which after
`standardise` is the mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

NUMPY = SimpleNamespace(
    log1p=np.log1p,
    maximum=np.maximum,
    minimum=np.minimum,
    where=np.where,
    isfinite=np.isfinite,
    zeros_like=np.zeros_like,
)


NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?0[xX][0-9a-fA-F]+"
"""What a text must look like to be a dense value, as a regular expression; to ingest and to the served graph alike."""
SMALLEST = 2.0**-126
"""The smallest normal float32. Numbers nearer to 0 are read as 0: TensorFlow's kernels flush them too, but not always."""


@dataclass(frozen=True, slots=True)
class Log1p:
    """log(1 + max(x, 0)): negative counts, which logs use for "unknown", count as 0."""

    def apply(self, x: Any, moments: "Moments | None", ops: Any) -> Any:
        return ops.log1p(ops.maximum(x, np.float32(0)))


@dataclass(frozen=True, slots=True)
class Clip:
    """min(max(x, low), high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"`clip` needs two finite numbers, the lower first; got [{self.low}, {self.high}]")

    def apply(self, x: Any, moments: "Moments | None", ops: Any) -> Any:
        return ops.minimum(ops.maximum(x, np.float32(self.low)), np.float32(self.high))


@dataclass(frozen=True, slots=True)
class Standardise:
    """(x - mean) / standard deviation, both fitted on the train split after the transforms that come before."""

    def apply(self, x: Any, moments: "Moments | None", ops: Any) -> Any:
        assert moments is not None, "standardise is applied before it was fitted"
        return (x - np.float32(moments.mean)) * np.float32(1.0 / moments.std if moments.std > 0 else 1.0)


Transform = Log1p | Clip | Standardise


@dataclass(frozen=True, slots=True)
class Moments:
    """What `standardise` needs of one column. Build it with `Moments.of`, join parts with `merged` (Chan et al., 1979)."""

    count: int
    mean: float
    squares: float
    """Sum of squared differences from the mean."""

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @classmethod
    def of(cls, values: npt.NDArray[np.float32]) -> "Moments":
        """The moments of the finite entries of `values` (float32, any shape)."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return cls(0, 0.0, 0.0)
        mean = float(finite.mean())
        return cls(int(finite.size), mean, float(((finite - mean) ** 2).sum()))

    def merged(self, other: "Moments") -> "Moments":
        if not (self.count and other.count):
            return self if self.count else other
        count, delta = self.count + other.count, other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return Moments(count, mean, self.squares + other.squares + delta**2 * self.count * other.count / count)


def parse_transforms(column: str, entries: Sequence[Any]) -> tuple[Transform, ...]:
    """Reads a spec's list of transforms: "log1p", "standardise" or {"clip": [low, high]}.

    Raises ValueError for an unknown transform, bad bounds, or more than one "standardise".
    """
    transforms = tuple(_parse(column, entry) for entry in entries)
    if sum(isinstance(transform, Standardise) for transform in transforms) > 1:
        raise ValueError(f"column '{column}': `standardise` stands twice; once is enough, remove one")
    return transforms


def _parse(column: str, entry: Any) -> Transform:
    match entry:
        case "log1p":
            return Log1p()
        case "standardise":
            return Standardise()
        case {"clip": [int() | float() as low, int() | float() as high], **rest} if not rest:
            return Clip(float(low), float(high))
    raise ValueError(f"column '{column}': unknown transform {entry!r}; use log1p, standardise or {{clip: [low, high]}}")


def before_standardise(x: npt.NDArray[np.float32], transforms: Sequence[Transform]) -> npt.NDArray[np.float32] | None:
    """The values that `standardise` is fitted on (float32, the shape of `x`), or None where a column has none."""
    for transform in transforms:
        if isinstance(transform, Standardise):
            return x
        x = transform.apply(x, None, NUMPY)
    return None


def apply_transforms(x: Any, transforms: Sequence[Transform], moments: Moments | None, ops: Any = NUMPY) -> Any:
    """Applies a column's transforms in their order; float32 in and out, any shape. Missing (not finite) becomes 0.0."""
    y = x
    for transform in transforms:
        y = transform.apply(y, moments, ops)
    return ops.where(ops.isfinite(x), y, ops.zeros_like(y))


def moments_to_json(moments: Mapping[str, Moments]) -> dict[str, dict[str, float]]:
    return {name: {"count": m.count, "mean": m.mean, "squares": m.squares} for name, m in moments.items()}


def moments_from_json(values: Mapping[str, Mapping[str, float]]) -> dict[str, Moments]:
    return {name: Moments(int(v["count"]), v["mean"], v["squares"]) for name, v in values.items()}
