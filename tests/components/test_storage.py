"""Storage on paths and on a real gs:// server: the same promises on both."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paraserve.components import storage


@pytest.fixture(params=["path", "gcs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of each kind."""
    return str(tmp_path / "root") if request.param == "path" else request.getfixturevalue("bucket") + "/root"


def test_write_replaces_the_whole_content(root: str) -> None:
    place = storage.join(root, "a", "b.txt")
    storage.write_bytes(place, b"a long first content")
    storage.write_bytes(place, b"short")
    assert storage.read_bytes(place) == b"short"
    assert storage.list_names(storage.join(root, "a")) == ["b.txt"]


def test_a_missing_file_is_not_found(root: str) -> None:
    assert not storage.exists(storage.join(root, "none"))
    with pytest.raises(FileNotFoundError, match="none"):
        storage.read_bytes(storage.join(root, "none"))


def test_of_racing_creators_exactly_one_wins(root: str) -> None:
    place, racers = storage.join(root, "lock"), 8
    barrier = threading.Barrier(racers)

    def create(i: int) -> bool:
        barrier.wait()
        return storage.create_exclusive(place, str(i).encode())

    with ThreadPoolExecutor(racers) as pool:
        won = list(pool.map(create, range(racers)))
    assert sum(won) == 1
    assert storage.read_bytes(place) == str(won.index(True)).encode()
    assert storage.list_names(root) == ["lock"]


def test_create_exclusive_keeps_what_is_there(root: str) -> None:
    place = storage.join(root, "file")
    storage.write_bytes(place, b"old")
    assert not storage.create_exclusive(place, b"new")
    assert storage.read_bytes(place) == b"old"


def test_list_files_takes_a_file_a_folder_and_a_glob(root: str) -> None:
    for name in ("b.csv", "a.csv", "sub/c.csv", "a.txt"):
        storage.write_bytes(storage.join(root, name), name.encode())

    def names(pattern: str) -> list[str]:
        return [info.place.removeprefix(root + "/") for info in storage.list_files(pattern)]

    assert names(root) == ["a.csv", "a.txt", "b.csv", "sub/c.csv"]
    assert names(storage.join(root, "a.csv")) == ["a.csv"]
    assert names(storage.join(root, "*.csv")) == ["a.csv", "b.csv"]
    assert names(storage.join(root, "**/*.csv"))[-1] == "sub/c.csv"
    assert names(storage.join(root, "[b]*")) == ["b.csv"]
    assert names(storage.join(root, "*.parquet")) == []
    assert [info.size for info in storage.list_files(storage.join(root, "sub"))] == [len("sub/c.csv")]


def test_a_files_version_changes_with_its_content(root: str) -> None:
    place = storage.join(root, "file")
    storage.write_bytes(place, b"1")
    (before,) = storage.list_files(place)
    storage.write_bytes(place, b"2")
    (after,) = storage.list_files(place)
    assert before.version != after.version


def test_list_names_tells_files_and_folders_of_one_level(root: str) -> None:
    for name in ("b", "a/1", "a/2"):
        storage.write_bytes(storage.join(root, name), b"")
    assert storage.list_names(root) == ["a", "b"]
    assert storage.list_names(storage.join(root, "none")) == []


def local_folder(tmp_path: Path, **files: bytes) -> Path:
    folder = tmp_path / "local"
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_upload_folder_and_local_folder_round_trip(root: str, tmp_path: Path) -> None:
    place = storage.join(root, "set")
    storage.upload_folder(local_folder(tmp_path, manifest=b"m", sub__data=b"d"), place, last="manifest")
    with storage.local_folder(place) as copy:
        assert (copy / "manifest").read_bytes() == b"m"
        assert (copy / "sub" / "data").read_bytes() == b"d"
    assert storage.list_names(root) == ["set"]


def test_upload_folder_leaves_a_whole_folder_and_completes_a_part(root: str, tmp_path: Path) -> None:
    local = local_folder(tmp_path, manifest=b"m", data=b"d")
    part, whole = storage.join(root, "part"), storage.join(root, "whole")
    storage.write_bytes(storage.join(part, "data"), b"old")
    storage.write_bytes(storage.join(whole, "manifest"), b"old")
    for place in (part, whole):
        storage.upload_folder(local, place, last="manifest")
    assert storage.read_bytes(storage.join(part, "data")) == b"d"
    assert storage.read_bytes(storage.join(part, "manifest")) == b"m"
    assert storage.list_names(whole) == ["manifest"]
    assert storage.read_bytes(storage.join(whole, "manifest")) == b"old"


def test_a_failed_upload_leaves_nothing(tmp_path: Path) -> None:
    local = local_folder(tmp_path, manifest=b"m", data=b"d")
    (local / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match=r"nowhere|gone"):
        storage.upload_folder(local, str(tmp_path / "target" / "set"), last="manifest")
    assert list((tmp_path / "target").iterdir()) == []


def test_local_folder_of_a_missing_place(root: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"), storage.local_folder(storage.join(root, "none")):
        pass


def test_remove_folder(root: str) -> None:
    storage.write_bytes(storage.join(root, "a", "b"), b"")
    storage.write_bytes(storage.join(root, "ab"), b"")
    storage.remove_folder(storage.join(root, "a"))
    storage.remove_folder(storage.join(root, "none"))
    assert storage.list_names(root) == ["ab"]


@pytest.mark.parametrize(
    ("place", "message"),
    [("s3://bucket/x", "only paths and gs:// addresses"), ("", "an empty place"), ("gs:///x", "names no bucket")],
)
def test_places_that_are_none(place: str, message: str, bucket: str) -> None:
    with pytest.raises(ValueError, match=message):
        storage.read_bytes(place)


def test_hidden_files_are_no_data(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_bytes(b"")
    (tmp_path / "seen").write_bytes(b"")
    assert [Path(info.place).name for info in storage.list_files(str(tmp_path))] == ["seen"]
    assert storage.list_names(str(tmp_path)) == ["seen"]


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert storage.sha256_of(tmp_path / "f") == expected
