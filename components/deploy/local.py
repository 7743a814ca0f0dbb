"""Rolling out on one machine, and what `paraserve serve` does to the endpoint that stays behind."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from paraserve.components.deploy import asking, processes
from paraserve.components.deploy.champion import champion_of
from paraserve.components.deploy.endpoint import Endpoint, locked
from paraserve.components.deploy.envoy import HOST, SLOTS, Split, other
from paraserve.components.deploy.journal import read_journal
from paraserve.components.deploy.observation import CANARY, STABLE, Observation, Reply, Side
from paraserve.components.deploy.proxy import Attempts
from paraserve.components.deploy.rollout import CanaryError, ServedModel
from paraserve.components.deploy.state import State, read_state

PAIRED_ROWS = 200
RECOVER_SECONDS = 120.0


class LocalTarget:
    """A rollout.Target over an endpoint of this machine."""

    def __init__(
        self,
        endpoint: Endpoint,
        champion: ServedModel | None,
        model: ServedModel,
        rows: Sequence[Mapping[str, str]],
        start_deadline: float,
        fail_fraction: float = 0.0,
    ):
        """`rows`: raw examples; the first 200 are asked of both servers after each step, to compare predictions."""
        self.served, self._champion, self.model = endpoint, champion, model
        self.rows, self.start_deadline, self.fail_fraction = rows[:PAIRED_ROWS], start_deadline, fail_fraction
        self._slot = SLOTS[0]
        self._seen: dict[str, Attempts] = {}

    @property
    def champion(self) -> ServedModel | None:
        return self._champion

    @property
    def endpoint(self) -> str:
        return self.served.uri

    def restore(self) -> None:
        self.served.proxy.check_port()
        self.served.converge(self._champion, self.start_deadline)

    def start(self) -> None:
        stable = self.served.state.split.stable
        self._slot = other(stable) if stable else SLOTS[0]
        self.served.launch(self._slot, self.model, self.fail_fraction, self.start_deadline)
        self._check_inputs()
        self.served.split(Split(stable=stable, canary=self._slot))
        self._seen = self.served.proxy.attempts()

    def set_weight(self, percent: int) -> None:
        self.served.split(Split(stable=self.served.state.split.stable, canary=self._slot, percent=percent))

    def observe(self, replies: Sequence[Reply]) -> Observation:
        stable = self.served.state.split.stable
        before, self._seen = self._seen, self.served.proxy.attempts()

        def side(slot: str | None, name: str) -> Side:
            if slot is None:
                return Side()
            mine = [reply for reply in replies if reply.side == name]
            return Side(
                requests=self._seen[slot].requests - before[slot].requests,
                errors=self._seen[slot].errors - before[slot].errors + sum(reply.refused for reply in mine),
                latencies=[reply.seconds for reply in mine if reply.probability is not None],
            )

        if not self.served.alive(self._slot):
            trouble = f"its process is gone: {processes.tail(self.served.log_of(self._slot), 3)}"
            return Observation(stable=side(stable, STABLE), canary=side(self._slot, CANARY), trouble=trouble)
        return Observation(stable=side(stable, STABLE), canary=side(self._slot, CANARY), pairs=self._pairs(stable))

    def promote(self) -> None:
        self.served.converge(self.model, self.start_deadline)

    def side_of(self, upstream: str) -> str:
        """Who listens at HOST:PORT (the header that Envoy adds): STABLE, CANARY or ""."""
        for slot, server in self.served.state.servers.items():
            if upstream in (f"{HOST}:{server.rest_port}", f"{HOST}:{server.grpc_port}"):
                return CANARY if slot == self._slot else STABLE
        return ""

    def _check_inputs(self) -> None:
        """One request must suit both: clients cannot know who answers them."""
        if self.fail_fraction < 1:
            self._ask_patiently(self._slot)
        if (stable := self.served.state.split.stable) is None:
            return
        try:
            self._ask(stable, 1)
        except asking.Refused as error:
            raise CanaryError(
                f"the champion refuses what the new version takes ({error}), so no client can talk to both; "
                "deploy a model with other inputs under another model_name"
            ) from error

    def _ask_patiently(self, slot: str) -> None:
        """A real prediction; a server that fails some on purpose is asked again."""
        for tries_left in reversed(range(20 if self.fail_fraction else 1)):
            try:
                self._ask(slot, 1)
                return
            except (asking.Refused, requests.RequestException) as error:
                if not tries_left:
                    raise CanaryError(f"it does not predict: {error}") from error

    def _ask(self, slot: str, rows: int) -> list[float]:
        return asking.ask(self.served.state.servers[slot].rest_port, self.served.state.model_name, self.rows[:rows])

    def _pairs(self, stable: str | None) -> list[tuple[float, float]]:
        """Both models' probabilities of the same rows, asked directly: the shares that Envoy gives out stay as they are."""
        try:
            canary = self._ask(self._slot, len(self.rows))
        except (asking.Refused, requests.RequestException):
            return []  # whether it fails is judged by the requests of the step
        champion = self._ask(stable, len(self.rows)) if stable else canary
        return list(zip(champion, canary, strict=True))


def status(serving: str) -> dict[str, Any]:
    """What the endpoint is and does, in JSON values; {"serving": False} alone where there never was one."""
    folder = Path(serving).absolute()
    state = read_state(folder)
    if state is None:
        return {"serving": False}
    found = processes.find(folder)
    stable = state.split.stable
    return {
        "serving": bool(stable and stable in found and "envoy" in found),
        "endpoint": Endpoint(folder, state).uri,
        "model_name": state.model_name,
        "version": state.servers[stable].version if stable else None,
        "split": dataclasses.asdict(state.split),
        "servers": {slot: dataclasses.asdict(server) for slot, server in state.servers.items()},
        "processes": {
            role: {
                "pid": process.pid,
                "started": datetime.datetime.fromtimestamp(process.create_time()).isoformat(timespec="seconds"),
                "log": str(folder / "logs" / f"{role}.log"),
            }
            for role, process in found.items()
        },
        "rollout": read_journal(str(folder)),
    }


def stop(serving: str) -> None:
    """Stops the endpoint: no process and no port remains. `recover` starts it again. Does nothing where there is none."""
    folder = Path(serving).absolute()
    state = read_state(folder)
    if state is not None:
        with locked(folder):
            Endpoint(folder, state).stop()
    for process in processes.find(folder).values():  # somebody removed the folder under a living endpoint
        processes.stop(process, grace=5)


def recover(serving: str) -> None:
    """Ends what an interrupted rollout, or a restart of the machine, left: the registry's champion serves alone, or nothing.

    Raises ValueError where there never was an endpoint, or while a rollout is under way.
    """
    folder = Path(serving).absolute()
    state = read_state(folder)
    if state is None:
        raise ValueError(f"there was never an endpoint in {serving}; deploy a model, or correct the folder")
    with locked(folder):
        Endpoint(folder, state).converge(champion_of(state.registry, state.model_name), RECOVER_SECONDS)


def new_state(folder: Path, model_name: str, registry: str, port: int) -> State:
    """The state to begin with: what the folder holds, under these settings. Raises ValueError for another model's folder."""
    state = read_state(folder)
    if state is None:
        return State(model_name=model_name, registry=registry, port=port)
    if state.model_name != model_name:
        raise ValueError(
            f"the serving folder {folder} is the endpoint of '{state.model_name}', not of '{model_name}'; "
            "give each model a serving folder (and a port) of its own"
        )
    return dataclasses.replace(state, registry=registry, port=port)
