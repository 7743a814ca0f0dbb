import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from paraserve.components import run_folder
from paraserve.components.finish.finish import clear_leftovers, finish_run
from paraserve.components.finish.result import assemble
from paraserve.components.finish.summary import summarise

METRICS = {"auc": 0.79, "logloss": 0.54, "examples": 1000}
MODEL = {"name": "ctr", "version": "1", "uri": "/registry/ctr/1/model"}
ROLLOUT = {
    "decision": "promoted",
    "reason": "as good as stable",
    "steps": [10, 50, 100],
    "requests": {"stable": 300, "canary": 200},
    "failed_requests": 0,
    "endpoint": "http://127.0.0.1:8501/v1/models/ctr:predict",
}


def record(state: str = "succeeded", error: str = "", **outputs: Any) -> dict[str, Any]:
    extra = {"error": {"type": "ValueError", "message": error}} if error else {}
    return {"state": state, "seconds": 1.5, "outputs": outputs, **extra}


def promoted() -> dict[str, Any]:
    return {
        "ingest": record(),
        "train": record(),
        "evaluate": record(metrics=METRICS, gate={"decision": "promote", "reasons": ["first model"]}),
        "register": record(model=MODEL),
        "deploy": record(rollout=ROLLOUT),
    }


def test_a_promoted_run_has_every_part_of_the_contract() -> None:
    assert assemble(promoted()) == {
        "status": "succeeded",
        "steps": {n: {"state": "succeeded", "seconds": 1.5} for n in ("ingest", "train", "evaluate", "register", "deploy")},
        "metrics": METRICS,
        "gate": {"decision": "promote", "reasons": ["first model"]},
        "model": MODEL,
        "rollout": ROLLOUT,
    }


def test_a_rejected_run_succeeds_and_its_rollout_is_skipped() -> None:
    records = promoted()
    del records["register"], records["deploy"]
    records["evaluate"]["outputs"]["gate"] = {"decision": "reject", "reasons": ["AUC 0.5 is below 0.55"]}
    result = assemble(records)
    assert (result["status"], result["rollout"]["decision"]) == ("succeeded", "skipped")
    assert "rejected" in result["rollout"]["reason"]
    assert result["model"] == {"name": None, "version": None, "uri": None}
    assert "REJECTED" in summarise(result)
    assert "AUC 0.5 is below 0.55" in summarise(result)


def test_a_rolled_back_run_fails_at_deploy() -> None:
    records = promoted()
    rollout = ROLLOUT | {"decision": "rolled_back", "steps": [10], "reason": "errors"}
    records["deploy"] = record("failed", "rolled back: errors", rollout=rollout)
    result = assemble(records)
    assert result["status"] == "failed"
    assert result["rollout"]["decision"] == "rolled_back"
    assert result["error"] == {"step": "deploy", "type": "ValueError", "message": "rolled back: errors"}
    assert summarise(result).startswith("ROLLED BACK: ctr 1")


def test_the_first_failed_step_is_the_error() -> None:
    result = assemble({"ingest": record("failed", "no file matches x.csv; correct `data`")})
    assert result["status"] == "failed"
    assert result["error"] == {"step": "ingest", "type": "ValueError", "message": "no file matches x.csv; correct `data`"}
    assert result["metrics"] == {"auc": None, "logloss": None, "examples": None}
    assert result["rollout"]["decision"] == "skipped"
    assert "no file matches x.csv" in summarise(result)


@pytest.mark.parametrize("ended", ["", "interrupted by Ctrl-C"])
def test_a_step_that_was_cut_off_is_a_failure(ended: str) -> None:
    result = assemble({"ingest": record(), "train": record("running")}, ended)
    assert result["steps"]["train"]["state"] == "failed"
    assert result["error"]["step"] == "train"
    assert result["error"]["message"] == (ended or "it was cut off: killed, out of memory, or over its time limit")


@pytest.mark.parametrize("missing", ["ingest", "train", "evaluate", "register", "deploy"])
def test_a_step_without_a_record_is_a_failure(missing: str) -> None:
    records = promoted()
    for name in list(records)[list(records).index(missing) :]:
        del records[name]
    result = assemble(records)
    assert (result["status"], result["error"]["step"], result["error"]["type"]) == ("failed", missing, "NotStarted")


def test_finish_writes_the_result_and_clears_what_killed_writers_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run_folder.RUN_ID_VARIABLE, "r1")
    for name, content in promoted().items():
        with run_folder.step(str(tmp_path), name) as outputs:
            outputs.update(content["outputs"])
    leftover = tmp_path / "r1" / "steps" / ".train.json.0123456789abcdef0123456789abcdef.tmp"
    leftover.write_text("half")
    finish_run(str(tmp_path), "RUNNING")
    text = (tmp_path / "r1" / "result.json").read_text()
    assert text.endswith("}\n")
    result = json.loads(text)
    assert result["status"] == "succeeded"
    assert result["rollout"] == ROLLOUT
    assert not leftover.exists()
    assert "PROMOTED: ctr 1 answers at http://127.0.0.1:8501" in capsys.readouterr().out


def test_leftovers_are_files_and_folders_of_writers_only(tmp_path: Path) -> None:
    half = tmp_path / "shards" / f".train.{uuid.uuid4().hex}.tmp"
    half.mkdir(parents=True)
    (half / "part").write_text("x")
    kept = [tmp_path / "shards" / name for name in ("notes.tmp", ".hidden", ".notes.tmp", ".notes.123.tmp", ".report.~1.tmp")]
    for path in kept:
        path.write_text("kept")
    clear_leftovers(str(tmp_path))
    assert not half.exists()
    assert all(path.exists() for path in kept)
