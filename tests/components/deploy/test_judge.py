"""The judge's error rates, by seeded simulation."""

from collections.abc import Callable

import numpy as np
import pytest

from paraserve.components.deploy.config import RolloutConfig
from paraserve.components.deploy.judge import FINE, INCONCLUSIVE, WORSE, EProcess, Judge
from paraserve.components.deploy.observation import Observation, Side

CONFIG = RolloutConfig(alpha=0.05)
Random = np.random.Generator


def step(
    random: Random, n: int, share: float, errors: tuple[float, float], slower: float = 1.0, shift: float = 0.0
) -> Observation:
    """`n` requests, `share` of them to the canary; error rates (stable, canary); latencies with stalls that hit both sides."""
    canary = random.random(n) < share
    failed = random.random(n) < np.where(canary, errors[1], errors[0])
    latency = (
        random.lognormal(-5.3, 0.4, n)
        + np.repeat(random.exponential(0.05, n // 20 + 1) * (random.random(n // 20 + 1) < 0.05), 20)[:n]
    )
    latency *= np.where(canary, slower, 1.0)
    probability = random.beta(2, 3, 200)
    pairs = np.stack([probability, np.clip(probability + random.normal(shift, 0.1, 200), 0, 1)], axis=1)

    def side(chosen: np.ndarray) -> Side:
        return Side(requests=int(chosen.sum()), errors=int(failed[chosen].sum()), latencies=latency[chosen & ~failed].tolist())

    return Observation(stable=side(~canary), canary=side(canary), pairs=[(float(a), float(b)) for a, b in pairs])


def rolled_back(seed: int, make: Callable[[Random, float], Observation]) -> bool:
    random, judge = np.random.default_rng(seed), Judge(CONFIG, looks=3)
    return any(judge.judge(make(random, share)).outcome == WORSE for share in (0.1, 0.5, 1.0))


@pytest.mark.parametrize("errors", [(0.0, 0.0), (0.005, 0.005), (0.05, 0.05)])
def test_an_equal_canary_is_rarely_rolled_back(errors: tuple[float, float]) -> None:
    wrong = sum(rolled_back(seed, lambda r, w: step(r, 400, w, errors)) for seed in range(300))

    assert wrong <= 300 * CONFIG.alpha  # measured: far below, since the tests have margins


@pytest.mark.parametrize(
    "worse",
    [
        {"errors": (0.0, 0.3)},
        {"errors": (0.001, 0.08)},
        {"errors": (0.0, 0.0), "slower": 2.2},
        {"errors": (0.0, 0.0), "shift": 0.25},
    ],
)
def test_a_bad_canary_is_rolled_back(worse: dict) -> None:
    caught = sum(rolled_back(seed, lambda r, w: step(r, 400, w, **worse)) for seed in range(60))

    assert caught >= 57


def test_a_heavier_tail_alone_is_caught() -> None:
    def make(random: Random, share: float) -> Observation:
        seen = step(random, 400, share, (0.0, 0.0))
        tail = [v + (0.4 if random.random() < 0.15 else 0.0) for v in seen.canary.latencies]
        return Observation(stable=seen.stable, canary=Side(requests=seen.canary.requests, latencies=tail))

    assert sum(rolled_back(seed, make) for seed in range(60)) >= 57


def test_looking_often_does_not_raise_the_false_alarm_rate() -> None:
    alarms = 0
    for seed in range(400):
        random, process = np.random.default_rng(seed), EProcess()
        exceeded = False
        for _ in range(200):
            hits = int(random.random(5).__lt__(0.1).sum())
            process.add(hits, 5 - hits, 0.1)
            exceeded |= process.log_e > np.log(1 / 0.01)
        alarms += exceeded

    assert alarms <= 8  # 1 % of 400 is 4; a repeated fixed-sample test gives several times that


def test_at_100_percent_errors_are_compared_with_the_limit_or_the_champions_earlier_rate() -> None:
    alone = Observation(canary=Side(requests=400, errors=30))
    assert Judge(CONFIG, looks=1).judge(alone).outcome == WORSE

    judge = Judge(CONFIG, looks=2)
    beside = Observation(stable=Side(requests=200, errors=15), canary=Side(requests=200, errors=15))
    assert judge.judge(beside).outcome == FINE
    assert judge.judge(alone).outcome == FINE


def test_too_few_requests_are_inconclusive() -> None:
    verdict = Judge(CONFIG, looks=1).judge(Observation(canary=Side(requests=5)))

    assert verdict.outcome == INCONCLUSIVE
    assert "5 requests" in verdict.reason


@pytest.mark.parametrize(
    ("probabilities", "said"),
    [
        ([float("nan")] * 30, "no probabilities"),
        ([0.5] * 29 + [1.5], "no probabilities"),
        ([0.25] * 30, "0.25 to each"),
    ],
)
def test_gross_predictions_are_refused(probabilities: list[float], said: str) -> None:
    pairs = [(i / 30, p) for i, p in enumerate(probabilities)]
    verdict = Judge(CONFIG, looks=1).judge(Observation(canary=Side(requests=100), pairs=pairs))

    assert verdict.outcome == WORSE
    assert said in verdict.reason


def test_a_sharper_model_with_the_same_mean_is_fine() -> None:
    weak = np.random.default_rng(0).normal(0.5, 0.03, 200)
    sharp = np.clip(0.5 + (weak - 0.5) * 12, 0, 1)
    pairs = [(float(a), float(b)) for a, b in zip(weak, sharp, strict=True)]

    assert Judge(CONFIG, looks=1).judge(Observation(canary=Side(requests=100), pairs=pairs)).outcome == FINE
