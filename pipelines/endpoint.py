"""`paraserve serve status`: the endpoint of this machine, for people."""

from collections.abc import Mapping
from typing import Any

from paraserve.pipelines.models import table


def status_text(status: Mapping[str, Any]) -> str:
    """What `deploy.local.status` found, in a few lines."""
    if "endpoint" not in status:
        return "nothing was ever served here; `paraserve run` deploys a model"
    if not status["serving"]:
        return f"nothing is served: the endpoint of {status['model_name']} is stopped; the next `paraserve run` starts it again"
    split = status["split"]
    lines = [
        f"{status['model_name']} {status['version']} answers at {status['endpoint']}/v1/models/{status['model_name']}:predict"
    ]
    if split["canary"]:
        canary = status["servers"][split["canary"]]["version"]
        lines.append(f"a rollout is under way: {canary} gets {split['percent']} % of the traffic")
    rows = [(role, str(process["pid"]), process["started"], process["log"]) for role, process in status["processes"].items()]
    return "\n".join([*lines, table(("PROCESS", "PID", "SINCE", "LOG"), rows)])
