"""The gate: whether a model may go on to be served, and why. Pure: numbers in, decision out."""

from collections.abc import Iterator
from dataclasses import dataclass

from paraserve.components.evaluate.config import Thresholds
from paraserve.components.evaluate.metrics import Scores

PROMOTE, REJECT = "promote", "reject"


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """The model that serves now, as far as it could be compared with. One of `scores`, `same` and `differences` is set."""

    version: str
    scores: Scores | None = None
    """On the same examples as the candidate's."""
    same: bool = False
    """It is the candidate itself."""
    differences: tuple[str, ...] = ()
    """Why it cannot be judged on this data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that the gate looked at."""

    passed: bool
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What the gate found."""

    checks: tuple[Check, ...]

    @property
    def decision(self) -> str:
        return PROMOTE if all(check.passed for check in self.checks) else REJECT

    @property
    def reasons(self) -> list[str]:
        """What speaks against the model; all that speaks for it when nothing does."""
        wanted = self.decision == PROMOTE
        return [check.sentence for check in self.checks if check.passed == wanted]


def decide(candidate: Scores, champion: Champion | None, thresholds: Thresholds) -> Gate:
    """Holds a model's scores against the thresholds and against the champion's scores; None where there is no champion."""
    checks = [*_usable(candidate), *_absolute(candidate, thresholds), *_against(candidate, champion, thresholds)]
    return Gate(checks=tuple(checks))


def _usable(s: Scores) -> Iterator[Check]:
    if s.not_finite:
        yield Check(passed=False, sentence=f"{s.not_finite} of {s.examples} predictions are not finite (NaN or infinite).")
    if s.out_of_range:
        yield Check(
            passed=False, sentence=f"{s.out_of_range} of {s.examples} predictions are no probabilities (not in 0 to 1)."
        )


def _absolute(s: Scores, t: Thresholds) -> Iterator[Check]:
    yield _at_least("AUC", s.auc, t.min_auc, "min_auc")
    yield _at_most("Log loss", s.logloss, t.max_logloss, "max_logloss")
    yield _at_most("Calibration error", s.calibration_error, t.max_calibration_error, "max_calibration_error")


def _against(s: Scores, champion: Champion | None, t: Thresholds) -> Iterator[Check]:
    if champion is None:
        yield Check(passed=True, sentence="There is no champion yet to compare with.")
    elif champion.same:
        yield Check(
            passed=True, sentence=f"The champion {champion.version} is this very model, so it was not compared with it."
        )
    elif champion.scores is None:
        yield Check(
            passed=False,
            sentence=f"The champion {champion.version} cannot be judged on this data: {'; '.join(champion.differences)}. "
            "Put the spec back in line with the champion's, or start a model of another name.",
        )
    else:
        yield _not_below(s.auc, champion, champion.scores.auc, t.max_auc_drop)
        yield _not_above(s.logloss, champion, champion.scores.logloss, t.max_logloss_increase)


def _at_least(what: str, value: float, bound: float, name: str) -> Check:
    passed = value >= bound
    return Check(passed=passed, sentence=f"{what} {value:.5f} is {'at least' if passed else 'below'} {name} {bound:g}.")


def _at_most(what: str, value: float, bound: float, name: str) -> Check:
    passed = value <= bound
    return Check(passed=passed, sentence=f"{what} {value:.5f} is {'at most' if passed else 'above'} {name} {bound:g}.")


def _not_below(auc: float, champion: Champion, other: float, drop: float) -> Check:
    passed = auc >= other - drop
    return Check(passed=passed, sentence=_compared("AUC", auc, champion, other, f"max_auc_drop {drop:g}", passed))


def _not_above(logloss: float, champion: Champion, other: float, increase: float) -> Check:
    passed = logloss <= other + increase
    return Check(
        passed=passed, sentence=_compared("Log loss", logloss, champion, other, f"max_logloss_increase {increase:g}", passed)
    )


def _compared(what: str, value: float, champion: Champion, other: float, bound: str, passed: bool) -> str:
    return (
        f"{what} {value:.5f} against {other:.5f} of the champion {champion.version} ({value - other:+.5f}) "
        f"{'is within' if passed else 'breaks'} {bound}."
    )
