"""The deploy step: a registered version becomes the champion that serves, or is rolled back."""

from pathlib import Path

from paraserve.components.deploy.champion import champion_of
from paraserve.components.deploy.config import DeployConfig
from paraserve.components.deploy.endpoint import Endpoint, locked
from paraserve.components.deploy.journal import PROMOTED, ROLLED_BACK, Journal, RolloutResult
from paraserve.components.deploy.local import LocalTarget, new_state
from paraserve.components.deploy.replay import Replay, read_rows
from paraserve.components.deploy.rollout import ServedModel, Target, Traffic, run_rollout
from paraserve.components.register.registry import Registry


def deploy(config: DeployConfig) -> RolloutResult:
    """Rolls a version out on the config's target; run again, it finds what it did before.

    Raises:
        ValueError: no raw sample, a port in use, another rollout under way, no such version. Nothing was started then.
        RuntimeError: something else than the new version failed; the champion serves.
    """
    Registry(config.registry).get(config.model_name, config.version)
    if config.target == "kserve":
        from paraserve.components.deploy.kserve import deploy_kserve

        return deploy_kserve(config)
    return _deploy_local(config)


def _deploy_local(config: DeployConfig) -> RolloutResult:
    serving = Path(config.serving).absolute()
    rows = read_rows(config.shards)
    with locked(serving):
        endpoint = Endpoint(serving, new_state(serving, config.model_name, config.registry, config.serving_port))
        endpoint.proxy.check_port()
        target = LocalTarget(
            endpoint,
            champion_of(config.registry, config.model_name),
            ServedModel(version=config.version, model_uri=config.model_uri),
            rows,
            config.rollout.start_deadline,
            config.drill_canary_errors,
        )
        traffic = Replay(endpoint.uri, config.model_name, rows, target.side_of)
        try:
            return roll_out(config, target, traffic)
        finally:
            traffic.close()


def roll_out(config: DeployConfig, target: Target, traffic: Traffic) -> RolloutResult:
    """What every target does: finds this run's earlier decision, or rolls out and tells the registry."""
    journal = Journal(serving=config.serving, run_id=config.run_id, version=config.version)
    decided = journal.decided()
    if target.champion and target.champion.version == config.version:
        return _check_champion(config, target, traffic, journal)
    if decided and decided[0] == ROLLED_BACK:
        target.restore()
        return decided[1]

    def commit(reason: str) -> None:
        Registry(config.registry).promote(config.model_name, config.version, run_id=config.run_id, reason=reason)

    return run_rollout(target, config.rollout, traffic, journal, commit)


def _check_champion(config: DeployConfig, target: Target, traffic: Traffic, journal: Journal) -> RolloutResult:
    """The version is the champion already: an earlier attempt of this run, or another run, had moved the alias."""
    target.restore()
    replies = traffic.send(config.rollout.warmup_requests)
    failed = [reply for reply in replies if reply.probability is None]
    if failed:
        raise RuntimeError(f"the champion {config.version} failed {len(failed)} of {len(replies)} requests: {failed[0].error}")
    if decided := journal.decided():
        journal.write(PROMOTED, decided[1])
        return decided[1]
    return RolloutResult(
        decision="promoted",
        reason=f"version {config.version} is the champion already and answers; there was nothing to roll out",
        steps=(),
        requests={"stable": len(replies), "canary": 0},
        failed_requests=0,
        endpoint=target.endpoint,
    )
