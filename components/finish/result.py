"""The run's result, put together from the records that its steps left (see run_folder).

It is made from the records alone, never from what an orchestrator says: after a timeout or a deleted pod Kubeflow's exit
handler sees the state RUNNING, and no error message at all.
"""

import json
from collections.abc import Mapping
from typing import Any

from paraserve.components import run_folder, storage

FILE = "result.json"
STEPS = ("ingest", "train", "evaluate", "register", "deploy")
AFTER_GATE = ("register", "deploy")
SUCCEEDED, FAILED = "succeeded", "failed"
PROMOTED, ROLLED_BACK, SKIPPED = "promoted", "rolled_back", "skipped"

Records = Mapping[str, Mapping[str, Any]]


def write_result(folder: str, ended: str = "") -> dict[str, Any]:
    """Writes RUN/result.json from the records in a run's own folder, and returns it; `ended` as in `assemble`."""
    result = assemble(run_folder.read_steps(folder), ended)
    storage.write_bytes(storage.join(folder, FILE), to_json(result))
    return result


def to_json(result: Mapping[str, Any]) -> bytes:
    """The file's content: JSON with a line break at its end."""
    return f"{json.dumps(result, indent=1, allow_nan=False)}\n".encode()


def assemble(records: Records, ended: str = "") -> dict[str, Any]:
    """The result of a run whose steps left `records` (step name to record).

    `ended` says what ended the run from outside ("interrupted by Ctrl-C"), and becomes the message of a step that was cut off.
    """
    error = _error(records, ended)
    result = {
        "status": FAILED if error else SUCCEEDED,
        "steps": {name: _step(records[name]) for name in STEPS if name in records},
        "metrics": {"auc": None, "logloss": None, "examples": None} | _output(records, "evaluate", "metrics"),
        "gate": {"decision": None, "reasons": []} | _output(records, "evaluate", "gate"),
        "model": {"name": None, "version": None, "uri": None} | _output(records, "register", "model"),
        "rollout": _rollout(records, error),
    }
    return result | ({"error": error} if error else {})


def _step(record: Mapping[str, Any]) -> dict[str, Any]:
    cut_off = record["state"] == run_folder.RUNNING
    return {"state": run_folder.FAILED if cut_off else record["state"], "seconds": record["seconds"]}


def _output(records: Records, step: str, name: str) -> dict[str, Any]:
    return dict(records.get(step, {}).get("outputs", {}).get(name, {}))


def _error(records: Records, ended: str) -> dict[str, str] | None:
    """The first thing that kept the run from its end, in the order of the steps."""
    for name in STEPS:
        if name not in records:
            if name in AFTER_GATE and _rejected(records):
                return None
            message = ended or "it left no record: see the output above, on Kubeflow the log of its pod"
            return {"step": name, "type": "NotStarted", "message": message}
        if records[name]["state"] == run_folder.FAILED:
            return {"step": name, **records[name]["error"]}
        if records[name]["state"] == run_folder.RUNNING:
            message = ended or "it was cut off: killed, out of memory, or over its time limit"
            return {"step": name, "type": "CutOff", "message": message}
    return None


def _rejected(records: Records) -> bool:
    return _output(records, "evaluate", "gate").get("decision") == "reject"


def _rollout(records: Records, error: Mapping[str, str] | None) -> dict[str, Any]:
    reason = f"the run failed at {error['step']}" if error else "the gate rejected the model"
    nothing = {
        "decision": SKIPPED,
        "reason": reason,
        "steps": [],
        "requests": {"stable": 0, "canary": 0},
        "failed_requests": 0,
        "endpoint": "",
    }
    return nothing | _output(records, "deploy", "rollout")
