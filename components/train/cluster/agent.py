"""A worker's agent: a small gRPC server beside TensorFlow's, in the same process, for what TensorFlow's cannot do.

It fetches shards from object stores to local disk, ahead of the call that reads them: TensorFlow's own gs:// client speaks TLS
to one address only, and Python ops do not run on a server. It listens on its task's host at PORT_OFFSET above the task's port,
so that whoever knows a cluster's addresses knows its agents'. Messages are JSON, under gRPC's generic handlers:

    /paraserve.Agent/Fetch   Wanted -> {"path": ...} or {"error": name of the exception, "message": ...}

An answer with an error is the storage's or the shard's fault; no answer is the worker's.
"""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from paraserve.components import storage

PORT_OFFSET = 1000
SERVICE = "paraserve.Agent"
FETCH_SECONDS = 600.0
"""How long a fetch may take, other fetches of the worker that it waits for included."""
_ERRORS = {error.__name__: error for error in (ValueError, FileNotFoundError, PermissionError)}
"""Exceptions that keep their type on the way to the coordinator; others become OSError."""
_THREADS = 2
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def address_of(task_address: str) -> str:
    """The address, host:port, of the agent of the task at `task_address`. Raises ValueError where there is no such port."""
    host, _, port = task_address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= 65535 - PORT_OFFSET:
        raise ValueError(
            f"the worker at '{task_address}' leaves its agent no port: the agent's is {PORT_OFFSET} above the worker's; "
            f"give the worker host:port with a port below {65536 - PORT_OFFSET}"
        )
    return f"{host}:{int(port) + PORT_OFFSET}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A file to fetch."""

    place: str
    bytes: int
    sha256: str
    disk_bytes: int
    """All copies of the worker together may take no more."""
    keep: str = ""
    """The path that the worker reads now, which must not make room."""

    @property
    def name(self) -> str:
        """Its copy's name: equal for equal content, and one that a reader of error messages knows again."""
        return f"{self.sha256[:16]}-{self.place.rpartition('/')[2]}"


class LocalCopies:
    """Copies of files in a folder of bounded size; those that were asked for longest ago make room."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._sizes: dict[str, int] = {}
        """Bytes by name, what was asked for last at the end."""
        self._lock = threading.Lock()

    def fetch(self, wanted: Wanted) -> Path:
        """The file's copy, made unless it is there.

        Raises ValueError for a file that is not the one wanted, or leaves no room; what `storage.download` raises.
        """
        with self._lock:
            path = self._folder / wanted.name
            if wanted.name not in self._sizes:
                self._make_room(wanted)
                _copy(wanted, path)
            self._sizes.pop(wanted.name, None)
            self._sizes[wanted.name] = wanted.bytes
            return path

    def _make_room(self, wanted: Wanted) -> None:
        droppable = [name for name in self._sizes if name != Path(wanted.keep).name]
        while (used := sum(self._sizes.values())) + wanted.bytes > wanted.disk_bytes:
            if not droppable:
                raise ValueError(
                    f"it has {wanted.bytes} bytes, which do not fit into the {wanted.disk_bytes} that copies of shards may "
                    f"take on a worker, {used} of them in use; ingest with smaller `shard_rows`"
                )
            name = droppable.pop(0)
            (self._folder / name).unlink()
            del self._sizes[name]


def _copy(wanted: Wanted, path: Path) -> None:
    """Downloads under a temporary name, so that a copy is whole or not there."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        storage.download(wanted.place, temporary)
        found = storage.sha256_of(temporary)
        if found != wanted.sha256:
            raise ValueError(
                f"it has {temporary.stat().st_size} bytes with sha256 {found}, its manifest says {wanted.bytes} bytes with "
                f"sha256 {wanted.sha256}; ingest the data again"
            )
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def serving(task_address: str, folder: Path) -> Iterator[None]:
    """Runs the agent of this process's task, which keeps its copies in `folder`. Raises RuntimeError where its port is taken.

    Like TensorFlow's server it listens on all interfaces, except for a task on loopback.
    """
    copies = LocalCopies(folder)
    fetch = grpc.unary_unary_rpc_method_handler(
        lambda wanted, _: _answer(copies, wanted),
        request_deserializer=lambda message: Wanted(**json.loads(message)),
        response_serializer=_to_json,
    )
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="agent"),
        handlers=[grpc.method_handlers_generic_handler(SERVICE, {"Fetch": fetch})],
        options=[("grpc.so_reuseport", 0)],  # else two agents would share a port
    )
    host, _, port = address_of(task_address).rpartition(":")
    server.add_insecure_port(f"{host if host in _LOOPBACK else '[::]'}:{port}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()


def _answer(copies: LocalCopies, wanted: Wanted) -> dict[str, str]:
    try:
        return {"path": str(copies.fetch(wanted))}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


class Agent:
    """A worker's agent, as the coordinator asks it; to be closed at the end."""

    def __init__(self, address: str):
        self._address = address
        # A proxy for the way out of a cluster is none for the way within it.
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._fetch = self._channel.unary_unary(
            f"/{SERVICE}/Fetch", request_serializer=_to_json, response_deserializer=json.loads
        )

    def fetch(self, wanted: Wanted) -> Callable[[], str]:
        """Asks for a copy and returns at once; call what it returns to wait for the copy's path.

        That raises ConnectionError when the agent is gone, else ValueError or OSError that name the file and say what is wrong.
        """
        call = self._fetch.future(dataclasses.asdict(wanted), timeout=FETCH_SECONDS)
        return lambda: self._path(call, wanted)

    def _path(self, call: grpc.Future, wanted: Wanted) -> str:
        try:
            answer = call.result()
        except grpc.RpcError as error:
            raise ConnectionError(
                f"the worker's agent at {self._address} does not answer ({error.code().name}: {error.details()}); "
                "see that it runs, and that the coordinator reaches this port"
            ) from error
        if "error" in answer:
            kind = _ERRORS.get(answer["error"], OSError)
            raise kind(f"the worker at {self._address} cannot fetch {wanted.place}: {answer['message']}")
        path: str = answer["path"]
        return path

    def close(self) -> None:
        self._channel.close()


def _to_json(message: Any) -> bytes:
    return json.dumps(message).encode()
