"""Is the canary worse? Three families of tests, each with a third of alpha.

Errors: an anytime-valid e-process (Ramdas et al., 2023, https://arxiv.org/abs/2210.01948). If both sides fail equally often, an
    error falls on the canary with the probability of its share of the requests; the likelihood ratio against higher odds, mixed
    over them, exceeds 1/alpha with a probability of at most alpha, however often one looks. First attempts are judged:
    a retry on the champion hides a failure from the client, not from here. With no champion beside it (a first model, the
    step at 100) an error is compared with `max_error_rate` instead, or with the champion's earlier rate where that was higher.
Latency: Mann-Whitney against the champion's latencies times 1 + margin (the middle), alpha split over the looks, and the same
    e-process on the counts above the champion's 99th percentile times 1 + margin (the tail). Only within a step, where both
    sides ran beside each other: an earlier step would be compared with the machine's load of another moment. So a rollout of
    one step at 100 does not judge latency.
Predictions: both models are asked the same rows. A better model differs from the champion, row by row and in the shape of its
    distribution, so equality is not tested (PSI would refuse any sharper model). What is refused is gross: probabilities that
    are not finite or outside [0, 1], the same answer to every row, and a mean that differs by significantly more than
    `max_mean_shift` (a paired z test): of two models trained on the same label, one then is badly off calibration.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from paraserve.components.deploy.config import RolloutConfig
from paraserve.components.deploy.observation import Observation

FINE, WORSE, INCONCLUSIVE = "fine", "worse", "inconclusive"
SLACK = 1.2
"""Ratio of error rates up to which two sides count as equal."""
MIN_PAIRS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says after a step."""

    outcome: str
    """FINE, WORSE or INCONCLUSIVE (too few requests)."""
    reason: str = ""


class EProcess:
    """Evidence against "an event is a hit with a probability of at most q0", mixed over odds ratios 1.2 to 30."""

    def __init__(self) -> None:
        self.ratios = np.geomspace(1.2, 30, 24)
        self.log_likelihood_ratios: npt.NDArray[np.float64] = np.zeros_like(self.ratios)

    def add(self, hits: int, misses: int, q0: float) -> None:
        """Counts events that were seen since the last call, under their own `q0`, between 0 and 1 (both exclusive)."""
        q = q0 * self.ratios / (q0 * self.ratios + 1 - q0)
        self.log_likelihood_ratios += hits * np.log(q / q0) + misses * np.log((1 - q) / (1 - q0))

    @property
    def log_e(self) -> float:
        """Log of the e-value; above log(1/alpha) the claim is rejected at level alpha."""
        return float(np.logaddexp.reduce(self.log_likelihood_ratios) - np.log(len(self.ratios)))


class Judge:
    """Judges one rollout, step after step; the e-processes remember the steps before."""

    def __init__(self, config: RolloutConfig, looks: int):
        """`looks` is how often `judge` will be called."""
        self.config, self.looks = config, looks
        self.alpha = config.alpha / 3
        self.errors, self.tail = EProcess(), EProcess()
        self.stable_requests = self.stable_errors = 0

    def judge(self, seen: Observation) -> Verdict:
        """The verdict after a step in which `seen` happened."""
        tests = (
            self._judge_errors(seen),
            self._judge_latency(seen),
            judge_predictions(seen.pairs, self.config, self._per_look),
        )
        if reason := next(filter(None, tests), ""):
            return Verdict(WORSE, reason)
        if seen.canary.requests < self.config.min_requests:
            return Verdict(
                INCONCLUSIVE, f"only {seen.canary.requests} requests reached it, {self.config.min_requests} are needed"
            )
        return Verdict(FINE)

    @property
    def _per_look(self) -> float:
        return self.alpha / self.looks

    def _judge_errors(self, seen: Observation) -> str:
        stable, canary = seen.stable, seen.canary
        self.stable_requests += stable.requests
        self.stable_errors += stable.errors
        if stable.requests:
            self.errors.add(canary.errors, stable.errors, _share(canary.requests, stable.requests))
        else:
            usual = SLACK * self.stable_errors / max(self.stable_requests, 1)
            limit = min(max(self.config.max_error_rate, usual), 0.99)
            self.errors.add(canary.errors, canary.requests - canary.errors, limit)
        if self.errors.log_e <= np.log(1 / self.alpha):
            return ""
        beside = f"the champion {stable.errors} of {stable.requests}" if stable.requests else "no champion ran beside it"
        return f"it failed {canary.errors} of {canary.requests} requests ({beside})"

    def _judge_latency(self, seen: Observation) -> str:
        canary, stable = np.asarray(seen.canary.latencies), np.asarray(seen.stable.latencies)
        if min(len(canary), len(stable)) < self.config.min_requests:
            return ""
        tolerated = stable * (1 + self.config.max_latency_increase)
        p = stats.mannwhitneyu(canary, tolerated, alternative="greater").pvalue
        if p < self._per_look / 2:
            return f"its median latency is {_ms(np.median(canary))}, the champion's {_ms(np.median(stable))}"
        limit = np.quantile(tolerated, 0.99)
        slow = int((canary > limit).sum())
        self.tail.add(slow, int((stable > limit).sum()), _share(len(canary), len(stable)))
        if self.tail.log_e > np.log(2 / self.alpha):
            return f"{slow} of {len(canary)} answers took over {_ms(limit)}, the champion's 99th percentile and its margin"
        return ""


def _share(canary: int, stable: int) -> float:
    """The probability that an event falls on the canary when both sides are equal but for SLACK; kept off 0 and 1."""
    w = min(max(canary / (canary + stable), 1e-6), 1 - 1e-6)
    return w * SLACK / (w * SLACK + 1 - w)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def judge_predictions(pairs: Sequence[tuple[float, float]], config: RolloutConfig, alpha: float) -> str:
    """Why the canary's probabilities are grossly wrong, or "". `pairs`: the champion's and the canary's for the same rows."""
    if not pairs:
        return ""
    stable, canary = np.asarray(pairs, dtype=np.float64).T
    bad = ~(np.isfinite(canary) & (canary >= 0) & (canary <= 1))
    if bad.any():
        return f"{int(bad.sum())} of {len(canary)} predictions are no probabilities, the first {canary[bad][0]}"
    if len(canary) < MIN_PAIRS:
        return ""
    if np.ptp(canary) < 1e-6:
        return f"it answers {canary[0]:.4g} to each of {len(canary)} rows"
    shift = canary - stable
    noise = stats.norm.isf(alpha / 2) * shift.std(ddof=1) / np.sqrt(len(shift))
    if abs(shift.mean()) - noise > config.max_mean_shift:
        return (
            f"its mean prediction is {canary.mean():.3f}, the champion's {stable.mean():.3f} for the same rows: "
            f"over `max_mean_shift` {config.max_mean_shift}"
        )
    return ""
