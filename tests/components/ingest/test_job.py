"""Ingest from end to end, on real files."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paraserve.components import storage
from paraserve.components.features.transforms import Moments, before_standardise
from paraserve.components.ingest import statistics
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.job import ingest
from paraserve.components.manifest import FILE, SPLITS, Manifest, read_manifest
from paraserve.components.records import Block, read_shard

SPEC = """
label: {column: clicked, positive_at_least: 1}
time: at
dense: {price: {transforms: [log1p, standardise]}, age: {}}
categorical: {user: {dimension: 2, rows: 8}, kind: {dimension: 2, rows: 8, values: [x, y]}}
lists: {tags: {dimension: 2, rows: 8}}
"""
HEADER = "clicked,at,price,age,user,kind,tags,unused\n"


def row(i: int, **changes: str) -> str:
    values = {
        "clicked": str(i % 2),
        "at": str(1000 - i),
        "price": str(i / 8),
        "age": "" if i % 10 == 0 else str(i),
        "user": f"u{i}",
        "kind": "xyz"[i % 3],
        "tags": "|".join("ab"[: i % 3]),
        "unused": "?",
    }
    return ",".join((values | changes).values()) + "\n"


class Job:
    """A folder with data and a target, and ingest over them."""

    def __init__(self, folder: Path, rows: list[str]):
        self.folder, self.data, self.shards = folder, folder / "data.csv", folder / "shards"
        self.data.write_text(HEADER + "".join(rows))

    def run(self, **settings: Any) -> str:
        given = {"data": str(self.data), "feature_spec": SPEC, "shards": str(self.shards)} | settings
        return ingest(IngestConfig(**given), str(self.folder / "report"))

    def files(self) -> list[str]:
        """All files below the folder."""
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return Job(tmp_path, [row(i) for i in range(400)])


def block_of(place: str, manifest: Manifest, split: str) -> Block:
    with storage.local_folder(place) as folder:
        return Block.concatenate([read_shard(folder / s.file, manifest.layout) for s in manifest.splits[split].shards])


def test_the_packed_set(job: Job) -> None:
    place = job.run(shard_rows=50, eval_fraction=0.2, test_fraction=0.2)
    manifest = read_manifest(place)
    blocks = {split: block_of(place, manifest, split) for split in SPLITS}
    assert Path(place).parent == job.shards
    assert sum(len(block) for block in blocks.values()) == manifest.rows_read == 400
    assert (manifest.rows_bad, manifest.bad_by_reason) == (0, {})
    users = np.concatenate([block.ids[:, 0] for block in blocks.values()])
    assert len(np.unique(users)) == 400
    for split, block in blocks.items():
        assert manifest.splits[split].rows == len(block)
        assert manifest.splits[split].positives == block.labels.sum()
    files = storage.list_names(place)
    listed = [shard.file for split in SPLITS for shard in manifest.splits[split].shards]
    assert files == sorted([*listed, FILE, "statistics.json", "quarantine.jsonl", "raw_eval.jsonl.gz"])
    assert manifest.source == {"pattern": str(job.data), "files": [{"place": str(job.data), "size": job.data.stat().st_size}]}
    assert job.files()[:1] == ["data.csv"]
    assert list((job.folder / "tmp").iterdir()) == []


def test_moments_are_of_the_train_rows_alone(job: Job) -> None:
    place = job.run(shard_rows=7)
    manifest = read_manifest(place)
    train = block_of(place, manifest, "train")
    values = before_standardise(train.dense[:, 0], manifest.spec.dense[0].transforms)
    assert values is not None
    expected = Moments.of(values)
    assert set(manifest.moments) == {"price"}
    found = manifest.moments["price"]
    assert found.count == expected.count == manifest.splits["train"].rows
    assert found.mean == pytest.approx(expected.mean)
    assert found.std == pytest.approx(expected.std)


def test_statistics_count_the_kept_rows(job: Job) -> None:
    found = json.loads(storage.read_bytes(storage.join(job.run(), statistics.FILE)))
    assert sum(split["rows"] for split in found["splits"].values()) == 400
    assert found["dense"]["age"]["missing"] == 40
    assert [(top["value"], top["count"]) for top in found["categorical"]["kind"]["top"]] == [("x", 134), ("y", 133)]
    assert found["categorical"]["kind"]["out_of_range"] == 133
    assert found["lists"]["tags"]["empty"] == 134


def test_the_same_input_gives_the_same_set_and_is_packed_once(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    first = job.run()
    stamp = (Path(first) / FILE).stat().st_mtime_ns
    assert job.run() == first
    assert "is used again" in capsys.readouterr().out
    assert (Path(first) / FILE).stat().st_mtime_ns == stamp
    assert storage.list_names(str(job.shards)) == [Path(first).name]


def test_the_digest_is_of_the_content(job: Job) -> None:
    first = job.run()
    os.utime(job.data, ns=(1, 1))
    touched = job.run()
    assert touched != first
    assert read_manifest(touched).data_digest == read_manifest(first).data_digest
    assert read_manifest(job.run(split_seed=1)).data_digest != read_manifest(first).data_digest
    job.data.write_text(job.data.read_text().replace("u7,", "u007,"))
    assert read_manifest(job.run()).data_digest != read_manifest(first).data_digest


@pytest.mark.parametrize("setting", [{"split_seed": 1}, {"shard_rows": 9}, {"max_bad_fraction": 0.0}, {"raw_sample_rows": 1}])
def test_the_settings_decide_the_place(job: Job, setting: dict[str, Any]) -> None:
    assert job.run(**setting) != job.run()


def test_files_in_parts_give_what_one_file_gives(job: Job) -> None:
    whole = read_manifest(job.run())
    lines = job.data.read_text().splitlines(keepends=True)[1:]
    (job.folder / "parts").mkdir()
    (job.folder / "parts" / "a.csv").write_text(HEADER + "".join(lines[:150]))
    (job.folder / "parts" / "b.csv.gz").write_bytes(gzip.compress((HEADER + "".join(lines[150:])).encode()))
    parts = read_manifest(job.run(data=str(job.folder / "parts" / "*")))
    assert parts.data_digest == whole.data_digest
    assert [Path(file["place"]).name for file in parts.source["files"]] == ["a.csv", "b.csv.gz"]


def test_a_bad_row_moves_no_other_row_to_another_split(job: Job) -> None:
    whole = job.run()
    lines = job.data.read_text().splitlines(keepends=True)
    job.data.write_text("".join([*lines[:100], "short\n", *lines[101:200], row(199, clicked=""), *lines[201:]]))
    damaged = job.run()
    users = [{s: set(block_of(p, read_manifest(p), s).ids[:, 0].tolist()) for s in SPLITS} for p in (whole, damaged)]
    assert all(users[1][split] <= users[0][split] for split in SPLITS)
    assert sum(len(users[1][split]) for split in SPLITS) == 398


def test_split_by_time(job: Job) -> None:
    place = job.run(split="time", eval_fraction=0.1, test_fraction=0.2, shard_rows=50)
    manifest = read_manifest(place)
    prices = {split: block_of(place, manifest, split).dense[:, 0] for split in SPLITS}  # the price falls with the time
    assert prices["train"].min() > prices["eval"].max() > prices["eval"].min() > prices["test"].max()
    assert {split: len(values) for split, values in prices.items()} == {"train": 280, "eval": 40, "test": 80}
    assert (np.diff(prices["train"]) > 0).any()
    assert (np.diff(prices["train"]) < 0).any()


def test_the_raw_sample_is_the_first_eval_rows_as_text(job: Job) -> None:
    place = job.run(raw_sample_rows=5)
    manifest = read_manifest(place)
    lines = gzip.decompress((Path(place) / manifest.raw_sample["file"]).read_bytes()).splitlines()
    prices = block_of(place, manifest, "eval").dense[:5, 0].tolist()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == manifest.raw_sample["rows"] == 5
    assert [float(row["price"]) for row in rows] == prices
    assert list(rows[0]) == ["price", "age", "user", "kind", "tags"]
    none = read_manifest(job.run(raw_sample_rows=0))
    assert none.raw_sample["rows"] == 0


def damage(job: Job) -> None:
    lines = job.data.read_text().splitlines(keepends=True)
    lines[4:7] = ["short\n", "\n", row(6, clicked="NA"), row(7, price="secret")]
    lines.append(row(0, clicked="", price="nan"))
    job.data.write_text("".join(lines))


def test_bad_rows_are_counted_and_listed_with_their_lines(job: Job) -> None:
    damage(job)
    place = job.run(max_bad_fraction=0.02)
    manifest = read_manifest(place)
    assert (manifest.rows_read, manifest.rows_bad) == (401, 4)
    assert manifest.bad_by_reason == {
        "label not a number": 1,
        "wrong number of fields": 1,
        "dense value not a number: price": 2,
        "label missing": 1,
    }
    content = (Path(place) / "quarantine.jsonl").read_text()
    listed = [json.loads(line) for line in content.splitlines()]
    assert {(entry["line"], *entry["reasons"]) for entry in listed} == {
        (5, "wrong number of fields"),
        (7, "label not a number"),
        (8, "dense value not a number: price"),
        (403, "label missing", "dense value not a number: price"),
    }
    assert {entry["file"] for entry in listed} == {str(job.data)}
    assert "secret" not in content


def test_values_go_to_the_quarantine_file_only_when_asked(job: Job) -> None:
    damage(job)
    listed = (Path(job.run(max_bad_fraction=0.02, quarantine_values=True)) / "quarantine.jsonl").read_text().splitlines()
    values = {json.loads(line)["line"]: json.loads(line)["values"] for line in listed}
    assert values[5] == "short"
    assert values[8]["price"] == "secret"


@pytest.mark.parametrize("split", ["random", "time"])
def test_too_many_bad_rows(job: Job, split: str) -> None:
    damage(job)
    with pytest.raises(ValueError, match="bad, more than") as caught:
        job.run(split=split, max_bad_fraction=0.009)
    message = str(caught.value)
    assert message.startswith("4 of 401 rows (1.00%) are bad, more than `max_bad_fraction` (0.009) allows.")
    assert f"dense value not a number: price (2, first at {job.data}:8)" in message
    place = next(word for word in message.split() if word.endswith("quarantine.jsonl.")).removesuffix(".")
    assert len(Path(place).read_text().splitlines()) == 4
    assert [name for name in job.files() if not name.startswith("report")] == ["data.csv", "tmp"]
    with pytest.raises(ValueError, match="bad, more than"):
        job.run(split=split, max_bad_fraction=0.009)  # and again: a retried step says the same


def test_the_threshold_itself_is_allowed(job: Job) -> None:
    job.data.write_text(HEADER + "".join(row(i, price="?" if i == 5 else "1") for i in range(100)))
    assert read_manifest(job.run(max_bad_fraction=0.01)).rows_bad == 1


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([row(2 * i) for i in range(200)], {}, "the label is never positive in all 200 rows.*`positive_at_least: 1`"),
        ([row(2 * i + 1) for i in range(200)], {}, "the label is always positive in all 200 rows"),
        ([row(i) for i in range(3)], {"eval_fraction": 0.001}, "split came out empty; rows are train"),
        (
            [row(i, at="7") for i in range(30)],
            {"split": "time"},
            r"eval split came out empty \(rows of one time stay together\)",
        ),
        ([], {}, "there is no good row in"),
        ([], {"split": "time"}, "there is no good row in"),
        ([row(1, clicked="")], {"max_bad_fraction": 1.0}, "there is no good row in"),
        ([row(1)], {"feature_spec": SPEC.replace("time: at", ""), "split": "time"}, "the feature spec names no time column"),
        ([row(1)], {"feature_spec": SPEC.replace("time: at", "time: when")}, "lacks the column 'when'"),
        ([row(1)], {"feature_spec": SPEC.replace("log1p", "log2")}, "unknown transform 'log2'"),
    ],
)
def test_data_that_cannot_be_used_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], settings: dict[str, Any], message: str
) -> None:
    job = Job(tmp_path, rows)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with pytest.raises(ValueError, match=message):
        job.run(**settings)
    assert job.files() == ["data.csv", "tmp"]


def test_a_target_that_cannot_be_written(job: Job) -> None:
    with pytest.raises(OSError, match=r"cannot write to .*/data\.csv/below: Not a directory; a part of it is a file"):
        job.run(shards=str(job.data / "below"))
    assert job.files() == ["data.csv", "tmp"]


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.job import ingest
ingest(IngestConfig(data=sys.argv[1], feature_spec=sys.argv[2], shards=sys.argv[3]), sys.argv[4])
"""


def test_a_disk_that_takes_no_more_leaves_nothing(job: Job) -> None:
    # A limit on file sizes stands in for the full disk: the same calls fail, with EFBIG for ENOSPC.
    arguments = [str(job.data), SPEC, str(job.shards), str(job.folder / "report")]
    environment = os.environ | {"TMPDIR": str(job.folder / "tmp")}
    done = subprocess.run([sys.executable, "-c", FULL_DISK, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "OSError: [Errno 27] cannot write to" in done.stderr
    assert "File too large; a file may not grow further" in done.stderr
    assert job.files() == ["data.csv", "tmp"]


def test_from_and_to_an_object_store(job: Job, bucket: str) -> None:
    local = read_manifest(job.run())
    storage.write_bytes(f"{bucket}/in/data.csv", job.data.read_bytes())
    place = job.run(data=f"{bucket}/in", shards=f"{bucket}/out")
    manifest = read_manifest(place)
    assert place.startswith(f"{bucket}/out/")
    assert manifest.data_digest == local.data_digest
    assert len(block_of(place, manifest, "train")) == manifest.splits["train"].rows
    assert job.run(data=f"{bucket}/in", shards=f"{bucket}/out") == place
    storage.write_bytes(f"{bucket}/in/data.csv", job.data.read_bytes())  # a new generation
    assert job.run(data=f"{bucket}/in", shards=f"{bucket}/out") != place


def test_ingest_needs_no_tensorflow() -> None:
    code = "import sys; import paraserve.components.ingest.job; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
