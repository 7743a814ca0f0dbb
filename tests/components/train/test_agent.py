"""The agent and its copies, on a real gRPC server and a real fake-gcs-server."""

import contextlib
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paraserve.components import storage
from paraserve.components.train.cluster import agent
from paraserve.components.train.cluster.agent import Agent, Wanted


def wanted(place: str, content: bytes, disk_bytes: int = 10_000, keep: str = "") -> Wanted:
    digest = hashlib.sha256(content).hexdigest()
    return Wanted(place=place, bytes=len(content), sha256=digest, disk_bytes=disk_bytes, keep=keep)


def put(bucket: str, name: str, content: bytes, **settings: object) -> Wanted:
    storage.write_bytes(storage.join(bucket, name), content)
    return wanted(storage.join(bucket, name), content, **settings)  # type: ignore[arg-type]


def copies(folder: Path) -> list[str]:
    """The names of the copied files, without their digests; temporary files included."""
    return sorted(path.name.partition("-")[2] for path in folder.iterdir())


def free_task_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1] - agent.PORT_OFFSET}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def fetcher(folder: Path) -> Iterator[Agent]:
    """An agent, as the coordinator asks it."""
    task = free_task_address()
    with agent.serving(task, folder), contextlib.closing(Agent(agent.address_of(task))) as asked:
        yield asked


def test_a_copy_has_the_contents_and_is_made_once(fetcher: Agent, folder: Path, bucket: str) -> None:
    shard = put(bucket, "set/train-0.records", b"abc")

    path = fetcher.fetch(shard)()
    storage.remove_folder(f"{bucket}/set")

    assert Path(path).read_bytes() == b"abc"
    assert fetcher.fetch(shard)() == path
    assert copies(folder) == ["train-0.records"]


def test_equal_names_with_other_contents_are_other_copies(fetcher: Agent, bucket: str) -> None:
    paths = [fetcher.fetch(put(bucket, f"{name}/train-0.records", name.encode()))() for name in ("a", "b")]

    assert [Path(path).read_text() for path in paths] == ["a", "b"]


def test_what_was_asked_for_longest_ago_makes_room_but_never_what_is_read_now(
    fetcher: Agent, folder: Path, bucket: str
) -> None:
    shards = [put(bucket, f"{i}", bytes([i]) * 1000, disk_bytes=3500) for i in range(5)]
    read_now = fetcher.fetch(shards[0])()
    for shard in shards[1:3]:
        fetcher.fetch(shard)()
    assert copies(folder) == ["0", "1", "2"]

    fetcher.fetch(put(bucket, "3", bytes([3]) * 1000, disk_bytes=3500, keep=read_now))()
    assert copies(folder) == ["0", "2", "3"]
    fetcher.fetch(shards[4])()
    assert copies(folder) == ["2", "3", "4"]


def test_a_file_that_leaves_no_room_is_refused_with_the_remedy(fetcher: Agent, folder: Path, bucket: str) -> None:
    read_now = fetcher.fetch(put(bucket, "running", b"x" * 600, disk_bytes=1000))()

    with pytest.raises(ValueError, match=r"/ahead: it has 500 bytes.*into the 1000 .*600 of them in use.*`shard_rows`"):
        fetcher.fetch(put(bucket, "ahead", b"x" * 500, disk_bytes=1000, keep=read_now))()
    assert copies(folder) == ["running"]


def test_a_missing_object_is_named(fetcher: Agent, folder: Path, bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"the worker at 127.0.0.1:.* cannot fetch .*: there is no .* {bucket}/none"):
        fetcher.fetch(wanted(f"{bucket}/none", b""))()
    assert copies(folder) == []


def test_an_object_with_other_contents_is_named_and_not_kept(fetcher: Agent, folder: Path, bucket: str) -> None:
    shard = put(bucket, "shard", b"as ingest wrote it")
    storage.write_bytes(shard.place, b"as somebody did it")

    with pytest.raises(ValueError, match=rf"cannot fetch {bucket}/shard: .*its manifest says 18 bytes .*ingest the data again"):
        fetcher.fetch(shard)()
    assert copies(folder) == []


class _Forbidding(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"caller has no storage.objects.get access")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_object_that_may_not_be_read_is_named(fetcher: Agent, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Forbidding) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        storage._gcs.cache_clear()
        try:
            with pytest.raises(PermissionError, match=f"{bucket}/shard may not be read .*403 .*no storage.objects.get.*give"):
                fetcher.fetch(wanted(f"{bucket}/shard", b""))()
        finally:
            server.shutdown()


def test_a_fetch_returns_at_once_and_one_agent_serves_several_at_a_time(fetcher: Agent, folder: Path, bucket: str) -> None:
    asked = [fetcher.fetch(put(bucket, f"{i % 3}", b"%d" % (i % 3))) for i in range(12)]

    assert [Path(path()).read_text() for path in asked] == ["0", "1", "2"] * 4
    assert copies(folder) == ["0", "1", "2"]


def test_an_agent_that_is_gone_is_told_apart_from_a_file_that_is() -> None:
    task = free_task_address()
    with (
        contextlib.closing(Agent(agent.address_of(task))) as asked,
        pytest.raises(ConnectionError, match=rf"agent at {agent.address_of(task)} does not answer \(UNAVAILABLE"),
    ):
        asked.fetch(wanted("gs://bucket/shard", b""))()


def test_two_agents_do_not_share_a_port(tmp_path: Path) -> None:
    task = free_task_address()
    with (
        agent.serving(task, tmp_path / "a"),
        pytest.raises(RuntimeError, match=agent.address_of(task)),
        agent.serving(task, tmp_path / "b"),
    ):
        pass


def test_the_agents_address_follows_from_the_tasks() -> None:
    assert agent.address_of("worker-0.run.svc:2222") == "worker-0.run.svc:3222"
    for bad in ("host:65000", "host", "host:port"):
        with pytest.raises(ValueError, match=f"worker at '{bad}' leaves its agent no port.*below 64536"):
            agent.address_of(bad)
