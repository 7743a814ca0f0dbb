import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from paraserve.components import storage
from paraserve.components.evaluate.config import EvaluateConfig, Thresholds
from paraserve.components.evaluate.evaluation import Evaluation
from paraserve.components.evaluate.job import evaluate_model
from paraserve.components.evaluate.predict import predict_test_split
from paraserve.components.manifest import read_manifest
from paraserve.components.register.registry import Registry

LENIENT = Thresholds(max_calibration_error=0.2)
Evaluate = Callable[..., Evaluation]


@pytest.fixture
def evaluate(data: Any, tmp_path: Path) -> Evaluate:
    def run(model: Path, **changes: Any) -> Evaluation:
        settings: dict[str, Any] = {
            "model": str(model),
            "shards": data.shards,
            "registry": str(tmp_path / "registry"),
            "model_name": "ctr",
            "report": str(tmp_path / "report.html"),
            "thresholds": LENIENT,
        }
        return evaluate_model(EvaluateConfig(**settings | changes))

    return run


def crown(registry: str, model: Path) -> None:
    version = Registry(registry).register("ctr", model, {}, "run-0").version
    Registry(registry).promote("ctr", version, run_id="run-0", reason="test")


def expected(data: Any) -> np.ndarray:
    """What the good model says, computed by hand: the block's columns are known."""
    block = data.test
    from paraserve.components.features import keys

    starts = np.cumsum(block.lists[0][0]) - block.lists[0][0]
    rows = [block.lists[0][1][s : s + n][-2:] for s, n in zip(starts, block.lists[0][0], strict=True)]
    noir = np.array([keys.key_of("genres", "noir") in row for row in rows])
    is_m = block.ids[:, 0] == keys.key_of("gender", "M")
    return 1 / (1 + np.exp(-(1.5 * block.dense[:, 0] + is_m + 0.2 * noir - 0.5)))


def test_predictions_come_from_the_files(data: Any, good_model: Path) -> None:
    seen = predict_test_split(good_model, data.spec, data.shards, read_manifest(data.shards), ("city",))
    np.testing.assert_array_equal(seen.labels, data.test.labels)
    np.testing.assert_allclose(seen.probabilities, expected(data), atol=1e-6)
    np.testing.assert_array_equal(seen.keys["city"], data.test.ids[:, 1])


def test_another_column_order_gives_the_same_predictions(
    data: Any, good_model: Path, reordered_model: Path, tiny: SimpleNamespace
) -> None:
    manifest = read_manifest(data.shards)
    seen = [
        predict_test_split(model, spec, data.shards, manifest).probabilities
        for model, spec in ((good_model, data.spec), (reordered_model, tiny.REORDERED))
    ]
    np.testing.assert_array_equal(seen[0], seen[1])


def test_batches_make_no_difference(data: Any, good_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(data.shards)
    whole = predict_test_split(good_model, data.spec, data.shards, manifest).probabilities
    monkeypatch.setattr("paraserve.components.evaluate.predict.BATCH", 64)
    np.testing.assert_allclose(predict_test_split(good_model, data.spec, data.shards, manifest).probabilities, whole, atol=1e-7)


def test_a_good_first_model_is_promoted(evaluate: Evaluate, data: Any, good_model: Path) -> None:
    found = evaluate(good_model)
    assert found.gate.decision == "promote"
    assert found.scores.auc == pytest.approx(roc_auc_score(data.test.labels, expected(data)), abs=1e-6)
    assert found.scores.examples == 1000
    said = json.loads(found.to_json())
    assert (said["decision"], said["champion"], said["data_digest"]) == ("promote", None, "d" * 64)
    assert said["metrics"]["auc"] == found.scores.auc


def test_a_useless_model_is_rejected(evaluate: Evaluate, useless_model: Path) -> None:
    found = evaluate(useless_model)
    assert found.gate.decision == "reject"
    assert found.gate.reasons[0] == "AUC 0.50000 is below min_auc 0.55."


def test_worse_than_the_champion(evaluate: Evaluate, good_model: Path, useless_model: Path, tmp_path: Path) -> None:
    crown(str(tmp_path / "registry"), good_model)
    found = evaluate(useless_model, thresholds=Thresholds(min_auc=0.0, max_calibration_error=1.0))
    assert found.gate.decision == "reject"
    assert [reason.split()[0] for reason in found.gate.reasons] == ["AUC", "Log"]
    assert all("champion v1" in reason for reason in found.gate.reasons)
    assert found.champion is not None
    assert found.champion.scores is not None
    assert found.champion.scores.auc == pytest.approx(evaluate(good_model).scores.auc)


def test_as_good_as_a_champion_of_another_spec(
    evaluate: Evaluate, good_model: Path, reordered_model: Path, tmp_path: Path
) -> None:
    crown(str(tmp_path / "registry"), reordered_model)
    found = evaluate(good_model)
    assert found.gate.decision == "promote"
    assert any("against" in reason and "(+0.00000)" in reason for reason in found.gate.reasons)
    report = (tmp_path / "report.html").read_text()
    assert "champion v1" in report
    assert re.search(r"95 % interval.*\+0\.00000 to\s+\+0\.00000", report)


def test_the_champion_itself_is_not_compared(evaluate: Evaluate, good_model: Path, tmp_path: Path) -> None:
    crown(str(tmp_path / "registry"), good_model)
    found = evaluate(good_model)
    assert found.gate.decision == "promote"
    assert "this very model" in found.gate.reasons[-1]


def test_a_champion_that_needs_more_than_the_data_has(
    evaluate: Evaluate, good_model: Path, tiny: SimpleNamespace, tmp_path: Path
) -> None:
    spec = tiny.spec_of(dense={"age": {}, "height": {}})
    crown(str(tmp_path / "registry"), tiny.export_model(tmp_path / "model", spec, tiny.GOOD))
    found = evaluate(good_model)
    assert found.gate.decision == "reject"
    assert "needs the column 'height', which the data lacks" in found.gate.reasons[0]
    assert "cannot be judged" in (tmp_path / "report.html").read_text()


def test_a_model_that_cannot_be_judged_itself(evaluate: Evaluate, tiny: SimpleNamespace, tmp_path: Path) -> None:
    spec = tiny.spec_of(dense={"age": {}, "height": {}})
    with pytest.raises(ValueError, match=r"needs the column 'height'.*train it on this data"):
        evaluate(tiny.export_model(tmp_path / "model", spec, tiny.GOOD))


def test_not_finite_predictions(evaluate: Evaluate, tiny: SimpleNamespace, tmp_path: Path) -> None:
    spec = tiny.spec_of()
    model = tiny.export_model(tmp_path / "model", spec, tiny.GOOD | {"gender": float("nan")})
    found = evaluate(model, slice_columns=("gender",))
    assert found.gate.reasons[0] == "1000 of 1000 predictions are not finite (NaN or infinite)."
    assert found.gate.decision == "reject"
    assert "nan" not in found.to_json().lower().replace("(nan or infinite)", "")


def test_predictions_that_are_no_probabilities(evaluate: Evaluate, tiny: SimpleNamespace, tmp_path: Path) -> None:
    found = evaluate(tiny.export_model(tmp_path / "model", tiny.spec_of(), tiny.GOOD, kind=tiny.LogitModel))
    assert found.gate.decision == "reject"
    assert re.fullmatch(r"\d+ of 1000 predictions are no probabilities \(not in 0 to 1\).", found.gate.reasons[0])


def test_slices(evaluate: Evaluate, data: Any, good_model: Path) -> None:
    slices = {(s.column, s.value): s for s in evaluate(good_model, slice_columns=("gender", "city")).slices}
    assert set(slices) == {(c, v) for c, vs in (("gender", "FMX"), ("city", ("Bonn", "Köln", "Ulm & Süd"))) for v in vs} | {
        ("gender", "(missing)")
    }
    from paraserve.components.features import keys

    rows = data.test.ids[:, 0] == keys.key_of("gender", "M")
    part = slices["gender", "M"]
    assert (part.examples, part.positives) == (rows.sum(), data.test.labels[rows].sum())
    assert part.auc == pytest.approx(roc_auc_score(data.test.labels[rows], expected(data)[rows]), abs=1e-6)
    assert slices["gender", "(missing)"].auc is None or slices["gender", "(missing)"].examples > 1
    assert sum(s.examples for (column, _), s in slices.items() if column == "gender") == 1000


def test_an_unknown_slice_column(evaluate: Evaluate, good_model: Path) -> None:
    with pytest.raises(ValueError, match="slice column 'age' is no categorical column; known are gender, city"):
        evaluate(good_model, slice_columns=("age",))


def test_no_model_and_no_data(evaluate: Evaluate, good_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a model that paraserve exported"):
        evaluate(tmp_path)
    with pytest.raises(ValueError, match="no packed data set"):
        evaluate(good_model, shards=str(tmp_path))


def test_data_and_champion_on_an_object_store(
    evaluate: Evaluate, good_model: Path, useless_model: Path, bucket: str, tiny: SimpleNamespace, tmp_path: Path
) -> None:
    shards = storage.join(bucket, "shards")
    tiny.write_data(shards, tmp_path, tiny.spec_of(), [tiny.make_block(300, 5)])
    crown(storage.join(bucket, "registry"), useless_model)
    found = evaluate(good_model, shards=shards, registry=storage.join(bucket, "registry"))
    assert found.gate.decision == "promote"
    assert found.champion is not None
    assert found.champion.scores is not None
    assert found.champion.scores.auc == 0.5
