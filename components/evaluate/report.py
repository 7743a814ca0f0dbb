"""The HTML report of an evaluation: one self-contained file, for people."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from paraserve.components.evaluate import plots
from paraserve.components.evaluate.evaluation import Evaluation
from paraserve.components.evaluate.gate import PROMOTE
from paraserve.components.evaluate.metrics import AucDifference, auc_difference, calibration, roc
from paraserve.components.evaluate.slices import Slice

TEMPLATE = "report.html.j2"
_ROWS = (
    ("AUC", "auc", ".5f"),
    ("Log loss", "logloss", ".5f"),
    ("Calibration error", "calibration_error", ".5f"),
    ("Mean prediction", "mean_prediction", ".5f"),
    ("Not finite", "not_finite", ",d"),
    ("Not in 0 to 1", "out_of_range", ",d"),
)

_FAULTS = ("not_finite", "out_of_range")
"""Rows that stand there only when something is wrong."""


def render(evaluation: Evaluation) -> str:
    """The report as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    by_column: dict[str, list[Slice]] = {}
    for part in evaluation.slices:
        by_column.setdefault(part.column, []).append(part)
    return environment.get_template(TEMPLATE).render(
        evaluation=evaluation,
        promoted=evaluation.gate.decision == PROMOTE,
        difference=_auc_difference(evaluation),
        lineage=_lineage(evaluation),
        rows=_metric_rows(evaluation),
        plots={title: _image(svg) for title, svg in _plots(evaluation).items()},
        slices={
            column: (parts, _image(plots.plot_slices(column, parts, evaluation.scores.auc)))
            for column, parts in by_column.items()
        },
    )


def _auc_difference(evaluation: Evaluation) -> AucDifference | None:
    """Candidate minus champion, where there is one to compare with."""
    theirs = evaluation.champion_probabilities
    return None if theirs is None else auc_difference(evaluation.labels, evaluation.probabilities, theirs)


def _lineage(evaluation: Evaluation) -> dict[str, Mapping[str, Any]]:
    model, data = evaluation.description, evaluation.manifest
    return {
        "Model": {
            "content digest": evaluation.content_digest,
            "training run": model.run_id,
            "trained on data": model.data_digest,
            "spec digest": model.spec.digest,
        },
        "Training settings": model.training,
        "Test data": {
            "digest": data.data_digest,
            "spec digest": data.spec.digest,
            "source": f"{data.source['pattern']} ({len(data.source['files'])} file(s))",
            **data.settings,
        },
        "Package versions": model.versions,
    }


def _metric_rows(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """(metric, candidate, champion, difference), the last two empty where there is nothing to compare."""
    other = evaluation.champion.scores if evaluation.champion else None
    rows = []
    for title, name, form in _ROWS:
        value = getattr(evaluation.scores, name)
        if name in _FAULTS and not (value or (other and getattr(other, name))):
            continue
        theirs = "" if other is None else format(getattr(other, name), form)
        difference = "" if other is None else format(value - getattr(other, name), "+" + form)
        rows.append((title, format(value, form), theirs, difference))
    return rows


def _plots(evaluation: Evaluation) -> dict[str, str]:
    models = [("this model", evaluation.scores, evaluation.probabilities)]
    if evaluation.champion and evaluation.champion.scores and evaluation.champion_probabilities is not None:
        models.append(
            (f"champion {evaluation.champion.version}", evaluation.champion.scores, evaluation.champion_probabilities)
        )
    labels = evaluation.labels
    return {
        "ROC curve": plots.plot_roc([(name, scores.auc, roc(labels, p)) for name, scores, p in models]),
        "Calibration": plots.plot_calibration([(name, calibration(labels, p)) for name, _, p in models]),
        "Predictions by label": plots.plot_histogram(labels, evaluation.probabilities),
    }


def _image(svg: str) -> str:
    """As an address, so that the ids inside one drawing do not meet those of another."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
