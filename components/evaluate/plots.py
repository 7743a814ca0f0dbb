"""The report's plots, each a self-contained SVG."""

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraserve.components.evaluate.metrics import Calibration, Labels, Probabilities, Roc
from paraserve.components.evaluate.slices import Slice

CANDIDATE, CHAMPION, NEUTRAL, NEGATIVE = "#1a56db", "#d97706", "#9aa3af", "#94a3b8"
_STYLE = {
    "svg.fonttype": "none",  # texts stay texts
    "svg.hashsalt": "paraserve",  # the same plot gives the same bytes
    "font.family": ["sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7280",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
}


def plot_roc(curves: Sequence[tuple[str, float, Roc]]) -> str:
    """The ROC curves of (name, AUC, curve): the candidate's first, then the champion's."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes("False positive rate", "True positive rate")
        axes.plot([0, 1], [0, 1], color=NEUTRAL, linestyle=":", label="guessing, 0.5")
        for (name, auc, curve), color in reversed(list(zip(curves, (CANDIDATE, CHAMPION), strict=False))):
            x, y = curve.false_positive_rate, curve.true_positive_rate
            axes.plot(x, y, color=color, linewidth=1.8, label=f"{name}, {auc:.4f}")
        axes.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
        axes.legend(loc="lower right", reverse=True)
        return _svg(figure)


def plot_calibration(curves: Sequence[tuple[str, Calibration]]) -> str:
    """Observed rate against mean prediction, with standard errors for the first curve, the candidate's."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes("Mean prediction", "Share of positives")
        most = max(float(max(c.predicted.max(), c.observed.max())) for _, c in curves) * 1.05 or 1.0
        axes.plot([0, most], [0, most], color=NEUTRAL, linestyle=":", label="perfect")
        for (name, curve), color in reversed(list(zip(curves, (CANDIDATE, CHAMPION), strict=False))):
            error = np.sqrt(curve.observed * (1 - curve.observed) / curve.examples)
            shown = error if color == CANDIDATE else None
            axes.errorbar(
                curve.predicted, curve.observed, shown, color=color, fmt="o-", ms=3.5, lw=1.3, elinewidth=0.8, label=name
            )
        axes.set(xlim=(0, most), ylim=(0, most), aspect="equal")
        axes.legend(loc="upper left", reverse=True)
        return _svg(figure)


def plot_histogram(labels: Labels, probabilities: Probabilities) -> str:
    """How the predictions of positives and of negatives are spread, each to a sum of 1."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes("Prediction", "Share of examples")
        low, high = float(probabilities.min()), float(probabilities.max())
        edges = np.linspace(low, high, 41) if high > low else np.linspace(0, 1, 41)
        for positive, name, color in ((False, "negatives", NEGATIVE), (True, "positives", CANDIDATE)):
            chosen = probabilities[(labels > 0) == positive]
            shares = np.histogram(chosen, edges)[0] / len(chosen)
            axes.stairs(shares, edges, fill=True, alpha=0.45, color=color, label=name)
            axes.stairs(shares, edges, color=color)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        return _svg(figure)


def plot_slices(column: str, slices: Sequence[Slice], auc: float) -> str:
    """The AUC of each slice of a column that has one, against the whole split's."""
    shown = [s for s in slices if s.auc is not None][::-1]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 0.7 + 0.28 * max(len(shown), 1)), layout="constrained")
        axes = figure.add_subplot()
        axes.barh([_short(s.value) for s in shown], [s.auc or 0.0 for s in shown], color=CANDIDATE, height=0.62, alpha=0.85)
        axes.axvline(auc, color=CHAMPION, linewidth=1.2, linestyle="--", label=f"all examples, {auc:.4f}")
        lowest = min([s.auc for s in shown if s.auc is not None] + [auc])
        axes.set(xlabel=f"AUC by {column}", xlim=(max(0.0, min(0.5, lowest - 0.05)), 1))
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside upper right", fontsize=9)
        return _svg(figure)


def _short(text: str) -> str:
    text = text.replace("$", r"\$")  # else matplotlib reads mathematics
    return text if len(text) <= 24 else text[:23] + "…"


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
