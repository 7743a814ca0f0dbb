"""The demo's data: joined from a wheel as recbole's is laid out (a tiny one, so that the test needs no network)."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from paraserve.components.features.spec import load_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "movielens"
TABLES = {
    "inter": ["user_id:token item_id:token rating:float timestamp:float", "1 7 5 90", "2 7 3 80", "1 8 4 70"],
    "user": ["user_id:token age:token gender:token occupation:token zip_code:token", "1 30 M none T8H1N", "2 7 F other 1"],
    "item": [
        "item_id:token movie_title:token_seq release_year:token class:token_seq",
        '7 "Quoted 1995 Sci-Fi_War',
        "8 x V unknown",
    ],
}
"""Lines of each table, a space for a tab and _ for a space."""


def prepare(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "prepare.py"), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "recbole-1.2.1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for kind, lines in TABLES.items():
            head, *rows = lines
            content = "\n".join([head.replace(" ", "\t"), *(row.replace(" ", "\t").replace("_", " ") for row in rows), ""])
            archive.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{kind}", content)
    return path


def test_the_joined_table(tmp_path: Path, wheel: Path) -> None:
    done = prepare(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Harper" in done.stdout
    assert "no redistribution" in done.stdout
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["ratings.tsv"]
    assert (tmp_path / "out" / "ratings.tsv").read_text().splitlines() == [
        "user_id\titem_id\trating\ttimestamp\tage\tgender\toccupation\trelease_year\tgenres",
        "1\t7\t5\t90\t30\tM\tnone\t1995\tSci-Fi|War",
        "2\t7\t3\t80\t7\tF\tother\t1995\tSci-Fi|War",
        "1\t8\t4\t70\t30\tM\tnone\t\tunknown",
    ]
    columns = (tmp_path / "out" / "ratings.tsv").read_text().splitlines()[0].split("\t")
    assert set(load_spec(str(EXAMPLE / "spec.yaml")).columns) == set(columns)


def test_a_wheel_without_the_tables_leaves_no_part_of_a_table(tmp_path: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w"):
        pass
    done = prepare(tmp_path)
    assert done.returncode != 0
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The demo and the Makefile in a folder of their own, with a `paraserve` that only writes down what it is asked."""
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "movielens")
    shutil.copy(EXAMPLE.parents[1] / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("paraserve", "python"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> asked\n')
        (programs / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("command", [["examples/movielens/demo"], ["make", "clean"]])
def test_a_run_folder_that_is_not_the_demos_is_kept(checkout: Path, command: list[str]) -> None:
    (checkout / "run" / ".paraserve").mkdir(parents=True)
    (checkout / "run" / "result.json").write_text("mine")
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)
    assert (checkout / "run" / "result.json").read_text() == "mine"
    assert not (checkout / "asked").exists()
    assert ("the demo did not make" in done.stderr and done.returncode == 1) or "run/ stays" in done.stdout


def test_the_demos_own_run_folder_is_made_anew(checkout: Path) -> None:
    for _ in range(2):
        subprocess.run(["examples/movielens/demo"], cwd=checkout, capture_output=True, timeout=60)
        assert (checkout / "asked").read_text().count("paraserve run ") == 2
        (checkout / "asked").unlink()
        assert [path.name for path in (checkout / "run").rglob("*")] == [".paraserve", "demo"]
        (checkout / "run" / "result.json").write_text("the demo's")


def test_clean_removes_the_demos_run_folder_once_its_endpoint_is_stopped(checkout: Path) -> None:
    marker = checkout / "run" / ".paraserve" / "demo"
    marker.parent.mkdir(parents=True)
    marker.touch()
    subprocess.run(["make", "clean"], cwd=checkout, check=True, capture_output=True, timeout=60)
    assert (checkout / "asked").read_text() == "paraserve serve stop\n"
    assert not (checkout / "run").exists()
