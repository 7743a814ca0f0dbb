"""What a whole training on real servers exports of dynamic tables."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from paraserve.components.features.spec import parse_spec
from paraserve.components.manifest import FILE, read_manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def training(training: Any, tmp_path: Path) -> Any:
    """Trains on the packed data set with dynamic tables; a user gets a row at the third sighting, so that nearly all do."""
    folder = tmp_path / "dynamic"
    shutil.copytree(training.packed, folder)
    manifest = read_manifest(str(folder))
    spec = {section: dict(columns) for section, columns in manifest.spec.source.items()}
    spec["categorical"] = {
        "user": {"dimension": 8, "max_keys": 1000, "admit_after": 3},
        "item": {"dimension": 8, "max_keys": 1000},
    }
    spec["lists"] = {**spec["lists"], "history": {**spec["lists"]["history"], "rows": 0, "max_keys": 1000}}
    (folder / FILE).write_bytes(dataclasses.replace(manifest, spec=parse_spec(spec)).to_json())
    training.packed = folder
    return training


def test_an_export_within_a_budget(training: Any) -> None:
    """Items are in two columns and are seen more often: all 30 are kept, and 10 of the 20 users."""
    network, row = 4 * (1 + 1) + 4 * (1 + 4 * 8 + 1) * 16 + 4 * (16 + 1), 8 + 4 + 4
    limit = network + (16 + 2) * row + 40 * (8 + row)

    result = training.run(epochs=6, serving_max_bytes=limit, serving_dtype="int8")

    assert result.export_rows == 200
    assert result.export_difference <= 1e-6
    export = result.export
    assert (export.rows, export.rows_kept, export.bytes) == (16 + 20 + 30, 16 + 10 + 30, limit)
    assert export.coverage["item"] == 1.0
    assert 0.5 < export.coverage["user"] < 0.6
    assert export.auc == pytest.approx(result.figures["eval_auc"] - export.auc_lost)
    assert 0.6 < export.auc < result.figures["eval_auc"] - 0.05
