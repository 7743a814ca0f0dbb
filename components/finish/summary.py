"""A run's result in a few lines, for people."""

from collections.abc import Mapping
from typing import Any

from paraserve.components.finish.result import FAILED, PROMOTED, ROLLED_BACK


def summarise(result: Mapping[str, Any]) -> str:
    """Says how a run ended and why: the decision first, then the figures that it rests on."""
    lines = [_headline(result), *_error(result), *_metrics(result), *_gate(result), *_rollout(result)]
    seconds = ", ".join(f"{name} {step['seconds']:.1f} s" for name, step in result["steps"].items())
    return "\n".join([*lines, f"  steps:    {seconds}"] if seconds else lines)


def _headline(result: Mapping[str, Any]) -> str:
    model, rollout = result["model"], result["rollout"]
    name = f"{model['name']} {model['version']}"
    if rollout["decision"] == PROMOTED:
        return f"PROMOTED: {name} answers at {rollout['endpoint']}"
    if rollout["decision"] == ROLLED_BACK:
        return f"ROLLED BACK: {name}; the model before it serves on"
    if result["status"] == FAILED:
        return f"FAILED at {result['error']['step']}"
    return "REJECTED by the gate: nothing was registered, and the champion serves on"


def _error(result: Mapping[str, Any]) -> list[str]:
    return [f"  error:    {result['error']['type']}: {result['error']['message']}"] if "error" in result else []


def _metrics(result: Mapping[str, Any]) -> list[str]:
    metrics = result["metrics"]
    if metrics["auc"] is None:
        return []
    return [f"  test:     AUC {metrics['auc']:.4f}, log loss {metrics['logloss']:.4f} on {metrics['examples']} examples"]


def _gate(result: Mapping[str, Any]) -> list[str]:
    gate = result["gate"]
    return [f"  gate:     {gate['decision']}: {' '.join(gate['reasons']) or 'nothing against it'}"] if gate["decision"] else []


def _rollout(result: Mapping[str, Any]) -> list[str]:
    rollout = result["rollout"]
    if rollout["decision"] not in (PROMOTED, ROLLED_BACK):
        return []
    steps = " -> ".join(f"{weight} %" for weight in rollout["steps"])
    requests = f"{rollout['requests']['stable']} requests on stable, {rollout['requests']['canary']} on the canary"
    return [f"  rollout:  {steps}; {requests}, {rollout['failed_requests']} failed; {rollout['reason']}"]
