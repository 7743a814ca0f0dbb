"""The endpoint of one machine: Envoy and at most two model servers, brought to where they ought to be.

    SERVING/endpoint.json     see state            SERVING/envoy/     see envoy
    SERVING/rollout.json      see journal          SERVING/logs/      one file a process
    SERVING/models/VERSION/   copies of models from gs://

All methods converge: called again after a kill at any moment they reach the same end.
"""

import contextlib
import dataclasses
import fcntl
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from paraserve.components import storage
from paraserve.components.deploy import asking, processes
from paraserve.components.deploy.envoy import HOST, SLOTS, Split, other
from paraserve.components.deploy.proxy import Proxy
from paraserve.components.deploy.rollout import CanaryError, ServedModel
from paraserve.components.deploy.state import Server, State

_DRAIN_SECONDS = 10.0
_EXIT_PORT_TRIES = 3


class Endpoint:
    """The endpoint in the folder `serving`, which is an absolute path. Hold `locked(serving)` while changing it."""

    def __init__(self, serving: Path, state: State):
        self.serving, self.state = serving, state
        self.proxy = Proxy(serving, state.port)

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.state.port}"

    def converge(self, model: ServedModel | None, deadline: float) -> None:
        """Leaves `model` alone with all traffic, or nothing at all.

        Args:
            deadline: seconds that its server may take where it must be started.

        Raises CanaryError when it cannot be served, ValueError when the port is somebody else's.
        """
        if model is None:
            self.stop()
            return
        self.proxy.check_port()
        slot = self._slot_of(model)
        if slot is None:
            slot = self._free_slot()
            self.launch(slot, model, 0.0, deadline)
        self.split(Split(stable=slot))
        self._retire(other(slot))
        self._remove_copies(model)

    def launch(self, slot: str, model: ServedModel, fail_fraction: float, deadline: float) -> None:
        """Puts a server of `model` into a slot that has no traffic, in place of what is there; returns when it serves."""
        base = self._fetch(model)
        for _ in range(_EXIT_PORT_TRIES):
            self._stop_server(slot)
            rest_port, grpc_port = _free_ports()
            server = Server(
                version=model.version,
                model_uri=model.model_uri,
                rest_port=rest_port,
                grpc_port=grpc_port,
                fail_fraction=fail_fraction,
            )
            self._save(servers={**self.state.servers, slot: server})
            process = processes.start(self.serving, slot, self._command(base, server), self.log_of(slot))
            if self._wait_available(process, server, deadline):
                self.proxy.set_slot(slot, rest_port, grpc_port)
                return
            if "cannot listen" not in processes.tail(self.log_of(slot)):
                break
        raise CanaryError(f"its server did not come up: {processes.tail(self.log_of(slot), 3)} (all in {self.log_of(slot)})")

    def split(self, split: Split) -> None:
        """Divides the traffic between slots; returns when that is in force."""
        self._save(split=split)
        self.proxy.ensure()
        self.proxy.set_split(split)

    def stop(self) -> None:
        """Stops everything. The state keeps the model's name and registry, so that `recover` can start it again."""
        self.proxy.stop()
        for slot in SLOTS:
            self._stop_server(slot)
        self._save(split=Split(stable=None), servers={})

    def alive(self, slot: str) -> bool:
        return slot in processes.find(self.serving)

    def log_of(self, slot: str) -> Path:
        return self.serving / "logs" / f"{slot}.log"

    def _slot_of(self, model: ServedModel) -> str | None:
        """The slot with a working server of exactly this model, one that has traffic first."""
        for slot in sorted(self.state.servers, key=lambda s: s != self.state.split.stable):
            server = self.state.servers[slot]
            same = (server.version, server.model_uri, server.fail_fraction) == (model.version, model.model_uri, 0.0)
            if same and self.alive(slot) and asking.is_available(server.rest_port, self.state.model_name):
                return slot
        return None

    def _free_slot(self) -> str:
        """One without traffic: what serves now, though it ought not to, serves until its successor is ready."""
        split = self.state.split
        busy = split.stable or (split.canary if split.percent else None)
        return other(busy) if busy and self.alive(busy) else SLOTS[0]

    def _retire(self, slot: str) -> None:
        end = time.monotonic() + _DRAIN_SECONDS
        while self.alive(slot) and not self.proxy.drained(slot) and time.monotonic() < end:
            time.sleep(0.05)
        self._stop_server(slot)
        self._save(servers={s: server for s, server in self.state.servers.items() if s != slot})

    def _stop_server(self, slot: str) -> None:
        if process := processes.find(self.serving).get(slot):
            processes.stop(process, grace=_DRAIN_SECONDS + 2)  # it drains by itself when asked to end

    def _command(self, base: Path, server: Server) -> list[str]:
        options = {
            "--model-name": self.state.model_name,
            "--model-base": str(base),
            "--rest-port": str(server.rest_port),
            "--grpc-port": str(server.grpc_port),
            "--fail-fraction": str(server.fail_fraction),
        }
        flat = [text for option in options.items() for text in option]
        return [sys.executable, "-P", "-m", "paraserve.components.deploy.server", *flat]

    def _wait_available(self, process: processes.psutil.Process, server: Server, deadline: float) -> bool:
        end = time.monotonic() + deadline
        while not asking.is_available(server.rest_port, self.state.model_name):
            if not processes.alive(process):
                return False
            if time.monotonic() > end:
                raise CanaryError(f"its server was not ready within {deadline:.0f} s")
            time.sleep(0.05)
        return True

    def _fetch(self, model: ServedModel) -> Path:
        """The prefix of the model on local disk; one on gs:// is copied below the serving folder, once."""
        if not model.model_uri.startswith(storage.GCS):
            return Path(model.model_uri).absolute()
        copy = self.serving / "models" / model.version
        if not copy.exists():
            with storage.local_folder(model.model_uri) as folder:
                pb = next(folder.glob("*/saved_model.pb"), None)
                if pb is None:
                    raise CanaryError(f"{model.model_uri} has no numeric folder with a saved_model.pb")
                storage.upload_folder(folder, str(copy), last=pb.relative_to(folder).as_posix())
        return copy

    def _remove_copies(self, kept: ServedModel) -> None:
        for name in storage.list_names(str(self.serving / "models")):
            if name != kept.version:
                shutil.rmtree(self.serving / "models" / name, ignore_errors=True)

    def _save(self, **changes: object) -> None:
        self.state = dataclasses.replace(self.state, **changes)  # type: ignore[arg-type]
        self.state.write(self.serving)


def _free_ports() -> tuple[int, int]:
    """Two ports that are free now; the server takes them at once, before it loads anything."""
    with socket.socket() as first, socket.socket() as second:
        first.bind((HOST, 0))
        second.bind((HOST, 0))
        return first.getsockname()[1], second.getsockname()[1]


@contextlib.contextmanager
def locked(serving: Path) -> Iterator[None]:
    """Keeps everybody else from changing the endpoint; a kill lets go of it. Raises ValueError when it is taken."""
    (serving / "logs").mkdir(parents=True, exist_ok=True)
    with (serving / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"a rollout or a `paraserve serve` command is at work in {serving}; wait until it ends") from None
        yield
