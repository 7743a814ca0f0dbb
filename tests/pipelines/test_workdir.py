"""What the folder of `paraserve run` takes, removes and leaves alone."""

import json
import uuid
from pathlib import Path

import pytest

from paraserve.pipelines.workdir import Workdir


def half(folder: Path) -> Path:
    """What a killed writer leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".manifest.json.{uuid.uuid4().hex}.tmp"
    path.write_text("half")
    return path


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    workdir = Workdir(tmp_path / "w")
    with workdir.locked():
        workdir.start()
    return workdir


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in ("tmp/notes.txt", "result.json", "report.html", ".draft.tmp"):
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="name a new or empty folder"):
        Workdir(tmp_path / "mine").check()
    with pytest.raises(ValueError, match="is a file"):
        Workdir(tmp_path / "mine" / "result.json").check()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_an_empty_and_an_own_folder_are_taken(tmp_path: Path, workdir: Workdir) -> None:
    (workdir.path / "notes.txt").write_text("beside the runs")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "new", tmp_path / "empty", workdir.path):
        Workdir(path).check()


def test_only_leftovers_in_our_own_folders_are_cleared(tmp_path: Path, workdir: Workdir) -> None:
    gone = [half(workdir.path / name) for name in ("shards/abc", "snapshots", "registry/m", "runs/r/steps", "artifacts/r")]
    other = Workdir(tmp_path / "other")
    kept = [half(other.path / "registry"), half(workdir.path / "notes"), half(workdir.path)]
    (workdir.path / "tmp").mkdir()
    (workdir.path / "serving").symlink_to(other.path)
    kept += [workdir.path / "tmp" / "mine", workdir.path / "runs" / ".notes.tmp"]
    for path in kept[-2:]:
        path.write_text("mine")
    workdir.start()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    assert list(workdir.temporary.iterdir()) == []


def test_a_linked_folder_is_not_followed(tmp_path: Path, workdir: Workdir) -> None:
    kept = half(tmp_path / "shared" / "registry")
    (workdir.path / "registry").symlink_to(kept.parent)
    workdir.clear()
    assert kept.exists()


def test_the_result_is_there_whole_and_nothing_temporary(workdir: Workdir) -> None:
    workdir.finish("r", {"status": "failed", "steps": {}})
    assert json.loads(workdir.result.read_text()) == {"status": "failed", "steps": {}}
    assert sorted(path.name for path in workdir.path.rglob("*")) == [".paraserve", "lock", "result.json"]
