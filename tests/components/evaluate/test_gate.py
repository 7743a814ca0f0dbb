import dataclasses
import math
from typing import Any

import pytest

from paraserve.components.evaluate.config import EvaluateConfig, Thresholds, columns_of
from paraserve.components.evaluate.gate import Champion, decide
from paraserve.components.evaluate.metrics import Scores

SCORES = Scores(examples=1000, positives=400, auc=0.78, logloss=0.55, calibration_error=0.02, mean_prediction=0.41)
THRESHOLDS = Thresholds()


def with_scores(**changes: Any) -> Scores:
    return dataclasses.replace(SCORES, **changes)


def test_a_first_model_passes_by_the_thresholds() -> None:
    gate = decide(SCORES, None, THRESHOLDS)
    assert gate.decision == "promote"
    assert gate.reasons == [
        "AUC 0.78000 is at least min_auc 0.55.",
        "Log loss 0.55000 is at most max_logloss 1.",
        "Calibration error 0.02000 is at most max_calibration_error 0.1.",
        "There is no champion yet to compare with.",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auc": 0.54999}, "AUC 0.54999 is below min_auc 0.55."),
        ({"logloss": 1.2}, "Log loss 1.20000 is above max_logloss 1."),
        ({"calibration_error": 0.11}, "Calibration error 0.11000 is above max_calibration_error 0.1."),
        ({"not_finite": 3}, "3 of 1000 predictions are not finite (NaN or infinite)."),
        ({"out_of_range": 4}, "4 of 1000 predictions are no probabilities (not in 0 to 1)."),
    ],
)
def test_each_threshold_rejects_by_itself(changes: dict[str, Any], reason: str) -> None:
    gate = decide(with_scores(**changes), None, THRESHOLDS)
    assert (gate.decision, gate.reasons) == ("reject", [reason])


@pytest.mark.parametrize(
    ("changes", "decision", "reason"),
    [
        ({}, "promote", "AUC 0.78000 against 0.78000 of the champion v3 (+0.00000) is within max_auc_drop 0.002."),
        ({"auc": 0.7785}, "promote", "AUC 0.77850 against 0.78000 of the champion v3 (-0.00150) is within max_auc_drop 0.002."),
        ({"auc": 0.7775}, "reject", "AUC 0.77750 against 0.78000 of the champion v3 (-0.00250) breaks max_auc_drop 0.002."),
        (
            {"logloss": 0.556},
            "reject",
            "Log loss 0.55600 against 0.55000 of the champion v3 (+0.00600) breaks max_logloss_increase 0.005.",
        ),
    ],
)
def test_against_the_champion(changes: dict[str, Any], decision: str, reason: str) -> None:
    gate = decide(with_scores(**changes), Champion(version="v3", scores=SCORES), THRESHOLDS)
    assert gate.decision == decision
    assert reason in gate.reasons


def test_a_negative_drop_demands_a_gain() -> None:
    thresholds = Thresholds(max_auc_drop=-0.01)
    champion = Champion(version="v1", scores=SCORES)
    assert decide(with_scores(auc=0.785), champion, thresholds).decision == "reject"
    assert decide(with_scores(auc=0.791), champion, thresholds).decision == "promote"


def test_a_model_is_not_compared_with_itself() -> None:
    gate = decide(SCORES, Champion(version="v3", same=True), THRESHOLDS)
    assert gate.decision == "promote"
    assert gate.reasons[-1] == "The champion v3 is this very model, so it was not compared with it."
    assert decide(with_scores(auc=0.5), Champion(version="v3", same=True), THRESHOLDS).decision == "reject"


def test_a_champion_that_cannot_be_judged_rejects_with_a_remedy() -> None:
    gate = decide(SCORES, Champion(version="v3", differences=("it needs the column 'x', which the data lacks",)), THRESHOLDS)
    assert gate.decision == "reject"
    assert gate.reasons == [
        "The champion v3 cannot be judged on this data: it needs the column 'x', which the data lacks. "
        "Put the spec back in line with the champion's, or start a model of another name."
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_auc", 1.1), ("min_auc", math.nan), ("max_logloss", -1.0), ("max_logloss", math.inf), ("max_auc_drop", 2.0)],
)
def test_thresholds_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is {value}; give a number from"):
        Thresholds(**{name: value})


def test_config_checks_names_and_slices() -> None:
    settings: dict[str, Any] = {"model": "m", "shards": "s", "registry": "r", "report": "h"}
    with pytest.raises(ValueError, match="small letters"):
        EvaluateConfig(**settings, model_name="Ctr")
    with pytest.raises(ValueError, match="twice"):
        EvaluateConfig(**settings, model_name="ctr", slice_columns=("a", "a"))
    with pytest.raises(ValueError, match="at most 20"):
        EvaluateConfig(**settings, model_name="ctr", slice_columns=tuple(f"c{i}" for i in range(21)))
    assert columns_of(" a, b,,") == ("a", "b")
    assert columns_of("") == ()
