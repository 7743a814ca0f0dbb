"""The component as kfp runs it: parameters in, files and the run's record out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from paraserve.components import run_folder
from paraserve.components.ingest.component import ingest
from paraserve.components.manifest import FILE

SPEC = "label: {column: y, positive_at_least: 1}\ncategorical: {c: {dimension: 2, rows: 8}}\n"


def run(tmp_path: Path, content: str, **settings: float) -> str:
    (tmp_path / "data.csv").write_text(content)
    (place,) = ingest.python_func(
        data=str(tmp_path / "data.csv"),
        feature_spec=SPEC,
        shards=str(tmp_path / "shards"),
        run_folder=str(tmp_path / "runs"),
        manifest=SimpleNamespace(path=str(tmp_path / "manifest")),
        statistics=SimpleNamespace(path=str(tmp_path / "statistics")),
        **settings,
    )
    assert isinstance(place, str)
    return place


@pytest.fixture(autouse=True)
def run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_folder.RUN_ID_VARIABLE, "r1")


def test_outputs_and_record(tmp_path: Path) -> None:
    place = run(tmp_path, "y,c\n" + "".join(f"{i % 2},{i}\n" for i in range(200)))
    assert (tmp_path / "manifest").read_bytes() == (Path(place) / FILE).read_bytes()
    assert json.loads((tmp_path / "statistics").read_text())["categorical"]["c"]["distinct"] == 200
    record = run_folder.read_steps(str(tmp_path / "runs" / "r1"))["ingest"]
    assert record["state"] == "succeeded"
    assert record["outputs"]["shards"] == place
    assert sum(record["outputs"]["rows"].values()) == 200
    assert run(tmp_path, (tmp_path / "data.csv").read_text()) != ""


@pytest.mark.parametrize(
    ("settings", "cause"), [({"eval_fraction": 2.0}, "`eval_fraction` is 2.0"), ({}, "label missing (100, first at ")]
)
def test_a_failure_is_recorded_with_its_cause(tmp_path: Path, settings: dict[str, float], cause: str) -> None:
    with pytest.raises(ValueError, match=r"eval_fraction|label missing"):
        run(tmp_path, "y,c\n" + ",x\n" * 100, **settings)
    record = run_folder.read_steps(str(tmp_path / "runs" / "r1"))["ingest"]
    assert record["state"] == "failed"
    assert cause in record["error"]["message"]
    assert not (tmp_path / "shards").exists()
