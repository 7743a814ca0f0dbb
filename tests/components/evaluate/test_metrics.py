import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from paraserve.components.evaluate import metrics

LABELS = np.array([0, 0, 1, 1, 0, 1], np.float32)
PROBABILITIES = np.array([0.1, 0.4, 0.4, 0.8, 0.2, 0.3])


def test_scores_by_hand() -> None:
    scores = metrics.score(LABELS, PROBABILITIES)
    # Of the 9 pairs of positives (0.4, 0.8, 0.3) and negatives (0.1, 0.4, 0.2) 7 are right, one is a tie, one is wrong.
    assert scores.auc == pytest.approx(7.5 / 9)
    assert scores.logloss == pytest.approx(-sum(map(math.log, (0.9, 0.6, 0.4, 0.8, 0.8, 0.3))) / 6)
    # Each distinct prediction is a bin of its own: 0.4 holds one of each label.
    assert scores.calibration_error == pytest.approx((0.1 + 2 * 0.1 + 0.2 + 0.2 + 0.7) / 6)
    assert (scores.examples, scores.positives) == (6, 3)
    assert scores.mean_prediction == pytest.approx(2.2 / 6)


def test_certain_and_wrong_costs_much_but_not_infinitely() -> None:
    scores = metrics.score(np.array([0, 1], np.float32), np.array([1.0, 0.0]))
    assert scores.auc == 0
    assert scores.logloss == pytest.approx(-math.log(1e-7))


def test_not_finite_and_out_of_range_are_counted_and_leave_no_nan() -> None:
    scores = metrics.score(LABELS, np.array([np.nan, np.inf, -np.inf, 1.5, -0.2, 0.3]))
    assert (scores.not_finite, scores.out_of_range) == (3, 2)
    json.dumps(scores.to_json(), allow_nan=False)


@pytest.mark.parametrize("labels", [[0, 0], [1, 1]])
def test_one_label_only(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{sum(labels)} of the 2 test examples are positive"):
        metrics.score(np.array(labels, np.float32), np.array([0.1, 0.2]))


def test_calibration_bins_hold_equally_many_examples() -> None:
    random = np.random.default_rng(0)
    p = random.random(10_000) ** 3
    curve = metrics.calibration((random.random(10_000) < p).astype(np.float32), p)
    assert len(curve.examples) == metrics.CALIBRATION_BINS
    assert curve.examples.min() >= 499
    assert curve.examples.sum() == 10_000
    assert curve.error < 0.02
    assert metrics.calibration((random.random(10_000) < p).astype(np.float32), np.minimum(1, p + 0.2)).error > 0.15


def test_a_constant_prediction_is_one_bin() -> None:
    curve = metrics.calibration(LABELS, np.full(6, 0.7))
    assert curve.examples.tolist() == [6]
    assert curve.error == pytest.approx(0.2)


def test_roc_is_short_finite_and_keeps_its_area() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(20_000) < 0.3).astype(np.float32)
    p = np.clip(random.normal(0.3 + 0.2 * labels, 0.15), 0, 1)
    curve = metrics.roc(labels, p)
    assert 50 < len(curve.thresholds) <= metrics.CURVE_POINTS
    assert (curve.false_positive_rate[0], curve.true_positive_rate[0]) == (0, 0)
    assert (curve.false_positive_rate[-1], curve.true_positive_rate[-1]) == (1, 1)
    assert all(math.isfinite(t) for t in curve.thresholds)
    assert curve.thresholds == sorted(curve.thresholds, reverse=True)
    area = np.trapezoid(curve.true_positive_rate, curve.false_positive_rate)
    assert area == pytest.approx(roc_auc_score(labels, p), abs=1e-3)


def test_confusion_at_a_half() -> None:
    assert metrics.confusion(LABELS, np.array([0.1, 0.5, 0.4, 0.8, 0.2, 0.3])) == [[2, 1], [2, 1]]
    assert metrics.confusion(LABELS, np.full(6, 0.1)) == [[3, 0], [3, 0]]


def test_interval_of_a_difference_agrees_with_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(800) < 0.4).astype(np.float32)
    signal = labels + random.normal(size=800)
    a, b = signal + random.normal(size=800) * 0.5, np.round(signal + random.normal(size=800), 1)  # b has ties
    found = metrics.auc_difference(labels, a, b)
    assert found is not None
    assert found.difference == pytest.approx(roc_auc_score(labels, a) - roc_auc_score(labels, b))
    differences = []
    for _ in range(200):
        rows = random.integers(0, 800, 800)
        differences.append(roc_auc_score(labels[rows], a[rows]) - roc_auc_score(labels[rows], b[rows]))
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(differences), rel=0.15)


def test_no_interval_from_a_single_positive() -> None:
    labels = np.array([0, 0, 0, 1], np.float32)
    assert metrics.auc_difference(labels, np.arange(4.0), np.arange(4.0)) is None
