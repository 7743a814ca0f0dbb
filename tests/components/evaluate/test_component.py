"""The step as Kubeflow calls it: artifacts in and out, and its report."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from kfp import dsl

from paraserve.components import run_folder
from paraserve.components.evaluate.component import evaluate
from paraserve.components.register.registry import Registry

OUTPUTS = {"metrics": dsl.Metrics, "curves": dsl.ClassificationMetrics, "report": dsl.HTML}


@pytest.fixture
def called(
    data: Any, good_model: Path, useless_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """The component called for the good model, with the useless one as champion."""
    monkeypatch.setenv(run_folder.RUN_ID_VARIABLE, "run-1")
    registry = Registry(str(tmp_path / "registry"))
    registry.register("ctr", useless_model, {}, "run-0")
    registry.promote("ctr", "v1", run_id="run-0", reason="test")
    artifacts = {name: kind(uri=str(tmp_path / name)) for name, kind in OUTPUTS.items()}
    decision, evaluation = evaluate.python_func(
        model=dsl.Model(uri=str(good_model)),
        shards=data.shards,
        registry=registry.place,
        model_name="ctr",
        run_folder=str(tmp_path / "runs"),
        slice_columns="gender, city",
        max_calibration_error=0.2,
        **artifacts,
    )
    steps = run_folder.read_steps(str(tmp_path / "runs/run-1"))
    html = (tmp_path / "report").read_text()
    return SimpleNamespace(decision=decision, evaluation=json.loads(evaluation), html=html, step=steps["evaluate"], **artifacts)


def test_outputs_and_record(called: SimpleNamespace) -> None:
    assert called.decision == called.evaluation["decision"] == "promote"
    outputs = called.step["outputs"]
    assert called.step["state"] == "succeeded"
    assert outputs["metrics"] == called.evaluation["metrics"]
    assert outputs["gate"] == {"decision": "promote", "reasons": called.evaluation["reasons"]}
    assert (outputs["champion"]["version"], outputs["champion"]["metrics"]["auc"]) == ("v1", 0.5)


def test_what_kubeflow_draws(called: SimpleNamespace) -> None:
    json.dumps(called.metrics.metadata, allow_nan=False)
    assert called.metrics.metadata["auc"] == called.evaluation["metrics"]["auc"]
    json.dumps(called.curves.metadata, allow_nan=False)
    points = called.curves.metadata["confidenceMetrics"]
    assert 10 < len(points) <= 100
    assert set(points[0]) == {"confidenceThreshold", "falsePositiveRate", "recall"}
    rows = called.curves.metadata["confusionMatrix"]["rows"]
    assert sum(sum(row["row"]) for row in rows) == 1000


def test_the_report_has_its_parts(called: SimpleNamespace, good_model: Path) -> None:
    html = called.html
    assert re.search(r"ctr: <b>promote</b>", html)
    for reason in called.evaluation["reasons"]:
        assert reason in html
    assert "95 % interval" in html
    assert "This model ranks better than the champion." in html
    for text in (
        "champion v1",
        "ROC curve",
        "Calibration",
        "Predictions by label",
        "Ulm &amp; Süd",
        "one label only",
        "clicks.csv",
    ):
        assert text in html
    assert called.evaluation["content_digest"] in html
    # Self-contained: nothing is fetched, and every drawing is whole.
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    drawings = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", html)
    assert len(drawings) == 5
    for drawing in drawings:
        assert ElementTree.fromstring(base64.b64decode(drawing)).tag.endswith("svg")


def test_a_failure_is_recorded(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_folder.RUN_ID_VARIABLE, "run-1")
    with pytest.raises(ValueError, match="`min_auc` is 2"):
        evaluate.python_func(
            model=dsl.Model(uri=str(tmp_path)),
            shards=data.shards,
            registry=str(tmp_path / "registry"),
            model_name="ctr",
            run_folder=str(tmp_path / "runs"),
            min_auc=2.0,
            **{name: kind(uri=str(tmp_path / name)) for name, kind in OUTPUTS.items()},
        )
    step = run_folder.read_steps(str(tmp_path / "runs/run-1"))["evaluate"]
    assert (step["state"], step["error"]["type"]) == ("failed", "ValueError")
    assert not (tmp_path / "report").exists()
