"""The demo's data: joined from a wheel as recbole's is laid out (a tiny one, so that the test needs no network)."""

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
