"""What a rollout sees: each reply of the replayed traffic, and what came of it on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass, field

STABLE, CANARY = "stable", "canary"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One replayed request, as its client saw it."""

    row: int
    """Which example was asked about."""
    seconds: float
    """From sending to the whole answer, retries inside the proxy included."""
    probability: float | None
    """What the model said; None when the request failed."""
    side: str = ""
    """Who answered: STABLE, CANARY, or "" where the target cannot tell."""
    error: str = ""
    """Why it failed."""
    refused: bool = False
    """The server was reached and said that the request is wrong (HTTP 4xx): no proxy retries that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What one model did."""

    requests: int = 0
    """First attempts that were sent to it."""
    errors: int = 0
    """First attempts that it failed, whether a retry saved the client or not. A refusal (4xx) of a replayed row counts too."""
    latencies: Sequence[float] = ()
    """Seconds, of the requests that it answered; a sample is enough."""

    def __add__(self, other: "Side") -> "Side":
        return Side(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            latencies=(*self.latencies, *other.latencies),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What happened since the one before."""

    stable: Side = field(default_factory=Side)
    """The champion; all zero where there is none."""
    canary: Side = field(default_factory=Side)
    """The new version; also when it is a first model that has the traffic alone."""
    pairs: Sequence[tuple[float, float]] = ()
    """Probabilities of the champion and of the new version for the same rows; for a first model its own twice. May be empty
    where a target cannot ask both: then predictions are not judged."""
    trouble: str = ""
    """A fact that ends the rollout without any test, such as a canary process that is gone; "" for none."""

    def __add__(self, other: "Observation") -> "Observation":
        return Observation(
            stable=self.stable + other.stable,
            canary=self.canary + other.canary,
            pairs=(*self.pairs, *other.pairs),
            trouble=self.trouble or other.trouble,
        )
