"""What a local endpoint is made of, in SERVING/endpoint.json: which server is in which slot, and who has the traffic.

Which processes live is not in it: the system's process table knows better (see processes).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paraserve.components import storage
from paraserve.components.deploy.envoy import Split

FILE = "endpoint.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The model server of a slot."""

    version: str
    model_uri: str
    rest_port: int
    grpc_port: int
    fail_fraction: float = 0.0
    """Share of its requests that it fails on purpose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """An endpoint."""

    model_name: str
    registry: str
    """Where its champion stands."""
    port: int
    """Envoy's, for REST and gRPC."""
    split: Split = field(default_factory=lambda: Split(stable=None))
    servers: Mapping[str, Server] = field(default_factory=dict)
    """By slot; described before it is started."""

    def write(self, serving: Path) -> None:
        storage.write_bytes(str(serving / FILE), json.dumps(dataclasses.asdict(self), indent=1).encode())


def read_state(serving: Path) -> State | None:
    """The endpoint's state; None where there never was one."""
    try:
        values = json.loads((serving / FILE).read_bytes())
    except FileNotFoundError:
        return None
    servers = {slot: Server(**server) for slot, server in values["servers"].items()}
    return State(**{**values, "split": Split(**values["split"]), "servers": servers})
