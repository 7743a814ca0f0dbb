import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from paraserve.components import run_folder
from paraserve.components.exported import DESCRIPTION, Description
from paraserve.components.features.spec import parse_spec
from paraserve.components.manifest import Manifest, Split
from paraserve.components.register.component import register
from paraserve.components.register.config import RegisterConfig
from paraserve.components.register.content import content_digest
from paraserve.components.register.job import register_model
from paraserve.components.register.registry import Registry

SPEC = parse_spec(
    {
        "label": {"column": "click", "positive_at_least": 1},
        "dense": {"age": {}},
        "categorical": {"city": {"dimension": 2, "rows": 8}},
        "lists": {"genres": {"dimension": 2, "rows": 8, "max_length": 3}},
    }
)


@pytest.fixture
def shards(tmp_path: Path) -> str:
    none = Split(rows=0, positives=0, shards=())
    manifest = Manifest(
        spec=SPEC,
        moments={},
        splits={"train": none, "eval": none, "test": none},
        data_digest="test-data",
        source={"pattern": "clicks-*.csv", "files": []},
        rows_read=0,
        rows_bad=0,
        bad_by_reason={},
        settings={},
        raw_sample={},
    )
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/manifest.json").write_bytes(manifest.to_json())
    return str(tmp_path / "shards")


@pytest.fixture
def model(make_model: Callable[[str], Path]) -> Path:
    description = Description(
        spec=SPEC,
        moments={},
        data_digest="train-data",
        training={"epochs": 3, "model": "dlrm"},
        versions={"tensorflow": "2.21.0"},
        run_id="run-1",
    )
    folder = make_model("a")
    (folder / DESCRIPTION).write_bytes(description.to_json())
    return folder


def evaluation_of(model: Path, **changes: Any) -> str:
    return json.dumps(
        {
            "decision": "promote",
            "reasons": ["AUC 0.78 is at least min_auc 0.55."],
            "metrics": {"auc": 0.78, "logloss": 0.55, "examples": 1000},
            "champion": {"version": "v7", "metrics": {"auc": 0.77}},
            "thresholds": {"min_auc": 0.55},
            "content_digest": content_digest(model),
        }
        | changes
    )


def test_the_component_registers_and_records(model: Path, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_folder.RUN_ID_VARIABLE, "run-1")
    arguments = {
        "model": dsl.Model(uri=str(model)),
        "evaluation": evaluation_of(model),
        "shards": shards,
        "registry": str(tmp_path / "registry"),
        "model_name": "ctr",
        "run_folder": str(tmp_path / "runs"),
    }
    version, model_uri = register.python_func(**arguments)
    assert (version, model_uri) == ("v1", str(tmp_path / "registry/ctr/v1/model"))
    assert register.python_func(**arguments) == (version, model_uri)
    registry = Registry(arguments["registry"])
    assert registry.aliases("ctr") == {"candidate": "v1"}
    assert len(registry.history("ctr")) == 1
    step = run_folder.read_steps(str(tmp_path / "runs/run-1"))["register"]
    assert step["outputs"] == {"model": {"name": "ctr", "version": "v1", "uri": model_uri}}


def test_the_card_holds_the_lineage(model: Path, shards: str, tmp_path: Path) -> None:
    place = str(tmp_path / "registry")
    register_model(
        RegisterConfig(
            model=str(model), evaluation=evaluation_of(model), shards=shards, registry=place, model_name="ctr", run_id="run-9"
        )
    )
    card = Registry(place).card("ctr", "v1")
    assert card["content_digest"] == content_digest(model)
    assert card["metrics"]["auc"] == 0.78
    assert card["champion"]["version"] == "v7"
    assert card["run_id"] == "run-9"
    lineage = card["lineage"]
    assert (lineage["training_run_id"], lineage["training_data_digest"], lineage["test_data_digest"]) == (
        "run-1",
        "train-data",
        "test-data",
    )
    assert (lineage["spec_digest"], parse_spec(lineage["spec"])) == (SPEC.digest, SPEC)
    assert lineage["training"] == {"epochs": 3, "model": "dlrm"}
    assert lineage["versions"] == {"tensorflow": "2.21.0"}
    assert set(card["signatures"]["serving_default"]["inputs"]) == {"age", "city", "genres"}
    assert card["signatures"]["prehashed"]["inputs"] == {"ids": "int64 [examples, 4]", "dense": "float32 [examples, 1]"}
    text = (tmp_path / "registry/ctr/v1/model-card.md").read_text()
    for part in ("# ctr v1", "| auc | 0.78 |", "| model | dlrm |", "| tensorflow | 2.21.0 |", "min_auc 0.55", "test-data"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decision": "reject", "reasons": ["AUC 0.5 is below"]}, r"decided 'reject' \(AUC 0.5 is below\)"),
        ({"content_digest": "other"}, "the evaluation is of another model"),
    ],
)
def test_only_what_the_gate_let_through(
    changes: dict[str, Any], message: str, model: Path, shards: str, tmp_path: Path
) -> None:
    config = RegisterConfig(
        model=str(model),
        evaluation=evaluation_of(model, **changes),
        shards=shards,
        registry=str(tmp_path / "registry"),
        model_name="ctr",
        run_id="run",
    )
    with pytest.raises(ValueError, match=message):
        register_model(config)
    assert not (tmp_path / "registry").exists()


@pytest.mark.parametrize("evaluation", ["", "[]", "{}", '"promote"'])
def test_what_is_no_evaluation(evaluation: str, model: Path, shards: str, tmp_path: Path) -> None:
    config = RegisterConfig(
        model=str(model),
        evaluation=evaluation,
        shards=shards,
        registry=str(tmp_path / "registry"),
        model_name="ctr",
        run_id="run",
    )
    with pytest.raises(ValueError, match="pass its output `evaluation`"):
        register_model(config)


def test_a_bad_name_fails_before_anything_else() -> None:
    with pytest.raises(ValueError, match="small letters"):
        RegisterConfig(model="", evaluation="", shards="", registry="", model_name="C", run_id="run")


def test_registering_needs_no_tensorflow() -> None:
    import subprocess
    import sys

    code = "import sys, paraserve.components.register.job; sys.exit('tensorflow' in sys.modules or 'kfp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
