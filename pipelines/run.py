"""`paraserve run`: the pipeline on this machine, from its parameters to its exit code."""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paraserve.components import run_folder, storage
from paraserve.components.finish.result import FAILED, PROMOTED, ROLLED_BACK, SUCCEEDED, write_result
from paraserve.components.finish.summary import summarise
from paraserve.pipelines.parameters import Value
from paraserve.pipelines.supervise import run_supervised, stop_requests
from paraserve.pipelines.workdir import Workdir

EXIT_PROMOTED, EXIT_FAILED, EXIT_USAGE, EXIT_REJECTED, EXIT_ROLLED_BACK = 0, 1, 2, 3, 4


def run(workdir: Workdir, arguments: Mapping[str, Value]) -> int:
    """Runs the pipeline with checked, complete arguments, writes DIR/result.json, and returns the exit code.

    Raises Busy when another run goes on in the folder.
    """
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    with workdir.locked() as lock, stop_requests() as received:
        workdir.start()
        print(f"run {run_id} in {workdir.path}", flush=True)
        job = {"arguments": dict(arguments), "artifacts": str(workdir.artifacts(run_id))}
        code = run_supervised(job, _environment(workdir, run_id), lock, received)
        result = _settle(storage.join(str(arguments["run_folder"]), run_id), code, received)
        if result.get("error", {}).get("step") == "deploy" and result["rollout"]["decision"] != ROLLED_BACK:
            _settle_endpoint(str(arguments["serving"]))
        workdir.finish(run_id, result)
    print(f"\n{summarise(result)}\n{_where(workdir, run_id)}", flush=True)
    return exit_code(result)


def exit_code(result: Mapping[str, Any]) -> int:
    decision = result["rollout"]["decision"]
    if decision == ROLLED_BACK:
        return EXIT_ROLLED_BACK
    if result["status"] == FAILED:
        return EXIT_FAILED
    return EXIT_PROMOTED if decision == PROMOTED else EXIT_REJECTED


def _environment(workdir: Workdir, run_id: str) -> dict[str, str]:
    """What the steps find: the run's id, a folder for temporary files that ends with the run, and prints that show at once."""
    own = {run_folder.RUN_ID_VARIABLE: run_id, "TMPDIR": str(workdir.temporary), "PYTHONUNBUFFERED": "1"}
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **own}  # 2 leaves TensorFlow's errors


def _settle(folder: str, code: int, received: Sequence[str]) -> dict[str, Any]:
    """The run's result, from its steps' records and how its process ended."""
    result = write_result(folder, f"the run was stopped by {received[0]}" if received else "")
    if result["status"] == SUCCEEDED and code != 0:
        message = f"the pipeline's process ended with {code} after its last step; see the output above"
        return {**result, "status": FAILED, "error": {"step": "finish", "type": "PipelineError", "message": message}}
    return result


def _settle_endpoint(serving: str) -> None:
    """Brings an endpoint whose rollout was cut off back to the champion, and stops the canary's processes."""
    from paraserve.components.deploy import local, state

    if state.read_state(Path(serving)) is not None:
        local.recover(serving)


def _where(workdir: Workdir, run_id: str) -> str:
    """Where the run's files are."""
    logs = workdir.artifact(run_id, "train", "logs")
    lines = [
        f"  result:   {workdir.result}",
        f"  report:   {workdir.report}" if workdir.report.exists() else "",
        f"  curves:   tensorboard --logdir {logs}" if logs else "",
    ]
    return "\n".join(line for line in lines if line)
