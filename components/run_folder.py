"""The run's folder: where each step writes what it did, or the cause of its failure, for people and for the result.

    RUN_FOLDER/RUN_ID/steps/NAME.json    {"step", "state", "seconds", "outputs", "error"}
    RUN_FOLDER/RUN_ID/result.json        the steps' records put together (see components.finish.result)

Kubeflow's own API tells no cause of a failed step, and a terminated run skips the exit handler: so each step writes for itself.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from paraserve.components import storage

RUN_ID_VARIABLE = "PARASERVE_RUN_ID"
"""Environment variable with the run's id: set from the pod's label on Kubeflow and by `paraserve run` on one machine."""

RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"


def run_id() -> str:
    """The id of the run that this process is a step of. Raises ValueError outside a run."""
    value = os.environ.get(RUN_ID_VARIABLE, "")
    if not value:
        raise ValueError(f"{RUN_ID_VARIABLE} is not set: set it to a name that is unique for this run")
    return value


@contextlib.contextmanager
def step(run_folder: str, name: str) -> Iterator[dict[str, Any]]:
    """Records a step: yields a dict for its outputs (JSON values), and writes state, seconds and error on the way out.

    `run_folder` is the place of all runs; the record goes below the run's id. The error is re-raised.
    """
    place = step_place(storage.join(run_folder, run_id()), name)
    outputs: dict[str, Any] = {}
    start = time.time()

    def write(state: str, error: BaseException | None = None) -> None:
        record = {"step": name, "state": state, "seconds": round(time.time() - start, 2), "outputs": outputs}
        if error is not None:
            record["error"] = {"type": type(error).__name__, "message": str(error) or repr(error)}
        storage.write_bytes(place, json.dumps(record, indent=1, allow_nan=False).encode())

    write(RUNNING)
    try:
        yield outputs
    except BaseException as error:
        write(FAILED, error)
        raise
    write(SUCCEEDED)


def step_place(folder: str, name: str) -> str:
    """Where a run (`folder`: its own folder, id included) keeps the record of the step `name`."""
    return storage.join(folder, "steps", f"{name}.json")


def read_steps(folder: str) -> dict[str, dict[str, Any]]:
    """The records in a run's own folder by the step's name; a run without any gives an empty dict."""
    names = [n.removesuffix(".json") for n in storage.list_names(storage.join(folder, "steps"))]
    return {name: json.loads(storage.read_bytes(step_place(folder, name))) for name in names}
