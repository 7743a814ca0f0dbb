"""How good predictions are: AUC, log loss and calibration, and the curves behind them."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata
from sklearn.metrics import confusion_matrix, log_loss, roc_auc_score, roc_curve

Labels = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]

CALIBRATION_BINS = 20
CLIP = 1e-7
"""Log loss takes a probability for at least this and at most 1 - this: one wrong certainty must not make it infinite."""
CURVE_POINTS = 100
"""Most points of a ROC curve: Kubeflow keeps it in the artifact's metadata, and the UI draws it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a model is worth on a set of examples; all numbers finite."""

    examples: int
    positives: int
    auc: float
    """Area under the ROC curve, ties counting half."""
    logloss: float
    """Mean, in nats."""
    calibration_error: float
    """Expected calibration error: mean |observed rate - mean prediction| over bins of equally many examples."""
    mean_prediction: float
    not_finite: int = 0
    """Predictions that are NaN or infinite; the scores take them for 0.5."""
    out_of_range: int = 0
    """Finite predictions below 0 or above 1; the scores take them for 0 or 1."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Predictions in bins of about equally many examples, by rising probability; equal predictions share a bin."""

    predicted: npt.NDArray[np.float64]
    """float64 [bins], mean prediction."""
    observed: npt.NDArray[np.float64]
    """float64 [bins], share of positives."""
    examples: npt.NDArray[np.int64]
    """int64 [bins], at least 1 each."""

    @property
    def error(self) -> float:
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.examples))


@dataclass(frozen=True, kw_only=True, slots=True)
class Roc:
    """A ROC curve in at most CURVE_POINTS points, from (0, 0) to (1, 1)."""

    false_positive_rate: list[float]
    true_positive_rate: list[float]
    thresholds: list[float]
    """Falling, all finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AucDifference:
    """How sure a difference of two AUCs on the same examples is."""

    difference: float
    low: float
    high: float
    """Ends of the 95 % confidence interval."""


def usable(probabilities: Probabilities) -> Probabilities:
    """Probabilities that every metric takes: not finite becomes 0.5, the rest is cut to [0, 1]."""
    return np.clip(np.where(np.isfinite(probabilities), probabilities, 0.5), 0.0, 1.0)


def score(labels: Labels, probabilities: Probabilities) -> Scores:
    """Scores predictions, float64 [n], against labels, float32 [n]. Raises ValueError unless both labels occur."""
    positives = int(labels.sum())
    if not 0 < positives < len(labels):
        raise ValueError(
            f"{positives} of the {len(labels)} test examples are positive, so there is no AUC; ingest more data, give the "
            "test split a larger share, or correct the label"
        )
    p, finite = usable(probabilities), np.isfinite(probabilities)
    return Scores(
        examples=len(labels),
        positives=positives,
        auc=float(roc_auc_score(labels, p)),
        logloss=float(log_loss(labels, np.clip(p, CLIP, 1 - CLIP))),
        calibration_error=calibration(labels, p).error,
        mean_prediction=float(p.mean()),
        not_finite=int((~finite).sum()),
        out_of_range=int((finite & (p != probabilities)).sum()),
    )


def calibration(labels: Labels, probabilities: Probabilities) -> Calibration:
    """Bins of equal size tell more than bins of equal width where clicks are rare (Nguyen & O'Connor, 2015)."""
    inner = np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(probabilities, inner))
    which = np.searchsorted(edges, probabilities, side="right")
    examples = np.bincount(which, minlength=len(edges) + 1)
    filled = examples > 0
    predicted = np.bincount(which, probabilities, len(edges) + 1)[filled] / examples[filled]
    observed = np.bincount(which, labels, len(edges) + 1)[filled] / examples[filled]
    return Calibration(predicted=predicted, observed=observed, examples=examples[filled])


def roc(labels: Labels, probabilities: Probabilities) -> Roc:
    """The exact curve, thinned to points that are evenly spaced along it."""
    x, y, thresholds = roc_curve(labels, probabilities)
    thresholds[0] = max(1.0, thresholds[1])  # scikit-learn says infinity, which JSON cannot
    along = np.unique(np.searchsorted(x + y, np.linspace(0, 2, CURVE_POINTS)).clip(max=len(x) - 1))
    return Roc(
        false_positive_rate=x[along].tolist(),
        true_positive_rate=y[along].tolist(),
        thresholds=thresholds[along].tolist(),
    )


def confusion(labels: Labels, probabilities: Probabilities) -> list[list[int]]:
    """[[true negatives, false positives], [false negatives, true positives]] at a threshold of 0.5."""
    matrix: list[list[int]] = confusion_matrix(labels > 0, probabilities >= 0.5, labels=[False, True]).tolist()
    return matrix


def auc_difference(labels: Labels, a: Probabilities, b: Probabilities) -> AucDifference | None:
    """AUC of `a` minus AUC of `b` with its 95 % interval, by DeLong et al. (1988) through ranks (Sun & Xu, 2014).

    None where it takes more examples: at least two of each label.
    """
    positive = labels > 0
    if min(positive.sum(), (~positive).sum()) < 2:
        return None
    (pos_a, neg_a), (pos_b, neg_b) = _placements(positive, a), _placements(positive, b)
    difference = float(pos_a.mean() - pos_b.mean())
    variance = (pos_a - pos_b).var(ddof=1) / len(pos_a) + (neg_a - neg_b).var(ddof=1) / len(neg_a)
    reach = float(norm.ppf(0.975) * np.sqrt(variance))
    return AucDifference(difference=difference, low=difference - reach, high=difference + reach)


def _placements(positive: npt.NDArray[np.bool_], p: Probabilities) -> tuple[Probabilities, Probabilities]:
    """For each positive the share of negatives below it, for each negative the share of positives above it; ties half."""
    ranks = rankdata(p)
    above = (ranks[positive] - rankdata(p[positive])) / (~positive).sum()
    below = 1 - (ranks[~positive] - rankdata(p[~positive])) / positive.sum()
    return above, below
