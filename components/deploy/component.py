"""KFP component `deploy`."""

from typing import NamedTuple

from kfp import dsl

from paraserve.components import images


@dsl.component(base_image=images.TENSORFLOW, install_kfp_package=False)
def deploy(
    version: str,
    model_uri: str,
    shards: str,
    registry: str,
    model_name: str,
    serving: str,
    run_folder: str,
    target: str = "local",
    canary_steps: str = "10,50,100",
    step_requests: int = 400,
    max_latency_increase: float = 0.5,
    serving_port: int = 8501,
    drill_canary_errors: float = 0.0,
    kserve_namespace: str = "",
    service_account: str = "",
) -> NamedTuple("Outputs", [("decision", str), ("endpoint", str)]):  # type: ignore[valid-type]
    """Gives a registered version traffic in steps, and promotes it or rolls it back without a failed request.

    Args:
        version: The registered version.
        model_uri: Its prefix, a path or gs:// address, with one numeric folder.
        shards: Place of the packed data set whose raw sample is replayed as traffic.
        registry: Path or gs:// address of the registry; a promotion moves its aliases champion and previous.
        model_name: Its name in the registry and at the endpoint.
        serving: The serving folder, where the endpoint's state lives.
        run_folder: Place where the steps of all runs write their records.
        target: local (Envoy and two servers on this machine) or kserve (an InferenceService).
        canary_steps: Percentages of the traffic, rising, the last 100.
        step_requests: Replayed requests in each step.
        max_latency_increase: Tolerated increase of the latency, 0.5 for 50 %; at least 0.25.
        serving_port: The endpoint's port for REST and gRPC; local only.
        drill_canary_errors: Rehearses a rollback: share of its requests that the new version fails on purpose; local only.
        kserve_namespace: Namespace of the InferenceService; kserve only.
        service_account: Service account of the InferenceService, empty for the default; kserve only.
    """
    from paraserve.components import run_folder as runs
    from paraserve.components.deploy.config import DeployConfig, RolloutConfig, parse_steps
    from paraserve.components.deploy.job import deploy as run_deploy
    from paraserve.components.deploy.rollout import RolloutError

    with runs.step(run_folder, "deploy") as outputs:
        rollout = RolloutConfig(
            canary_steps=parse_steps(canary_steps), step_requests=step_requests, max_latency_increase=max_latency_increase
        )
        config = DeployConfig(
            version=version,
            model_uri=model_uri,
            shards=shards,
            registry=registry,
            model_name=model_name,
            serving=serving,
            run_id=runs.run_id(),
            rollout=rollout,
            target=target,
            serving_port=serving_port,
            drill_canary_errors=drill_canary_errors,
            kserve_namespace=kserve_namespace,
            service_account=service_account,
        )
        result = run_deploy(config)
        outputs["rollout"] = result.to_json()
        if result.decision == "rolled_back":
            raise RolloutError(f"version {version} of {model_name} was rolled back: {result.reason}")
    return result.decision, result.endpoint
