r"""The rollout of a new version, the same for every target: start it, give it traffic in steps, judge, promote or roll back.

    restore -> start -> [set_weight -> replay -> observe -> judge] for each step -> commit -> promote
                 \-----------------------\-> restore (rolled back)

The registry's alias `champion` is the only truth about which version ought to serve, and `commit`, which moves it, the only
point of no return. A step may be killed anywhere and run again: before the commit `restore` takes away what it had started,
after it `restore` finishes what was left, since the new version is the champion by then.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paraserve.components.deploy.config import RolloutConfig
from paraserve.components.deploy.journal import PROMOTED, PROMOTING, ROLLED_BACK, Journal, RolloutResult
from paraserve.components.deploy.judge import INCONCLUSIVE, WORSE, Judge
from paraserve.components.deploy.observation import Observation, Reply

log = logging.getLogger(__name__)


class RolloutError(RuntimeError):
    """The new version was rolled back; the message says why."""


class CanaryError(RuntimeError):
    """The new version cannot be served. A target raises it from `start` and `set_weight`; the rollout then rolls back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A version that a target serves."""

    version: str
    model_uri: str
    """The prefix, a path or gs:// address, with one numeric folder that holds the SavedModel."""


class Target(Protocol):
    """Where a rollout happens. Every method may be called again after a kill, and then converges to the same end."""

    @property
    def champion(self) -> ServedModel | None:
        """The version that serves before the rollout and after a rollback, by the registry; None for a first model."""
        ...

    @property
    def endpoint(self) -> str:
        """Where clients send `POST /v1/models/NAME:predict`."""
        ...

    def restore(self) -> None:
        """Makes the champion alone take all traffic, started again if it is gone, and takes any other version away; without a
        champion takes everything away. Does nothing where that holds already. Returns when it holds."""
        ...

    def start(self) -> None:
        """Starts the new version without traffic and waits until it has answered a real prediction. Raises CanaryError."""
        ...

    def set_weight(self, percent: int) -> None:
        """Sends `percent` of the traffic to the new version, and returns when that is in force. Raises CanaryError."""
        ...

    def observe(self, replies: Sequence[Reply]) -> Observation:
        """What happened since the last call, on both sides; `replies` is what the replay's clients saw meanwhile."""
        ...

    def promote(self) -> None:
        """Makes the new version, which has all traffic, the stable one; drains the old one and takes it away."""
        ...


class Traffic(Protocol):
    """Sends requests to the target's endpoint as clients would."""

    def send(self, count: int) -> Sequence[Reply]:
        """Sends `count` requests and returns when all are answered."""
        ...


def run_rollout(
    target: Target, config: RolloutConfig, traffic: Traffic, journal: Journal, commit: Callable[[str], None]
) -> RolloutResult:
    """Rolls the new version out, or back.

    Args:
        commit: moves the registry's alias to the new version, given the reason; called once every step is passed.

    Returns:
        The decision with its reason. What is not the new version's fault (the registry cannot be reached, say) is raised,
        with the champion serving.
    """
    rollout = _Rollout(target, config, traffic, journal)
    target.restore()
    try:
        reason = rollout.climb()
        journal.write(PROMOTING, rollout.result("promoted", reason))
        commit(reason)
    except CanaryError as error:
        log.warning("rolling back: %s", error)
        target.restore()
        return rollout.finish(ROLLED_BACK, "rolled_back", str(error))
    except BaseException:
        # KeyboardInterrupt too. After a kill the next run's `restore` does this.
        target.restore()
        raise
    target.promote()
    return rollout.finish(PROMOTED, "promoted", reason)


class _Rollout:
    """One run's progress through the steps."""

    def __init__(self, target: Target, config: RolloutConfig, traffic: Traffic, journal: Journal):
        self.target, self.config, self.traffic, self.journal = target, config, traffic, journal
        # Without a champion there is nothing to split against.
        self.weights = config.canary_steps if target.champion else (100,)
        self.judge = Judge(config, looks=len(self.weights))
        self.steps: list[int] = []
        self.requests = {"stable": 0, "canary": 0}
        self.failed_requests = 0

    def climb(self) -> str:
        """Takes the new version through all steps and returns why it is good. Raises CanaryError at the first that is bad."""
        self.journal.write("starting", self.result("", ""))
        self.target.start()
        for percent in self.weights:
            self.target.set_weight(percent)
            self.steps.append(percent)
            self.journal.write("stepping", self.result("", ""))
            self._step(percent)
        if not self.target.champion:
            return f"the first model is healthy and answered {self.requests['canary']} replayed requests"
        return f"not worse than version {self.target.champion.version} in any of the steps {', '.join(map(str, self.steps))}"

    def _step(self, percent: int) -> None:
        deadline = time.monotonic() + self.config.step_deadline
        self._send(self.config.warmup_requests)  # connections and caches warm up; not judged
        seen = self._send(self.config.step_requests)
        while not seen.trouble and seen.canary.requests < self.config.min_requests and time.monotonic() < deadline:
            seen += self._send(self.config.step_requests)
        if seen.trouble:
            raise CanaryError(f"at {percent} %: {seen.trouble}")
        verdict = self.judge.judge(seen)
        log.info("at %d %%: %s %s", percent, verdict.outcome, verdict.reason)
        if verdict.outcome in (WORSE, INCONCLUSIVE):
            raise CanaryError(f"at {percent} %: {verdict.reason}")

    def _send(self, count: int) -> Observation:
        replies = self.traffic.send(count)
        seen = self.target.observe(replies)
        self.failed_requests += sum(reply.probability is None for reply in replies)
        self.requests["stable"] += seen.stable.requests
        self.requests["canary"] += seen.canary.requests
        return seen

    def result(self, decision: str, reason: str) -> RolloutResult:
        return RolloutResult(
            decision=decision,
            reason=reason,
            steps=tuple(self.steps),
            requests=dict(self.requests),
            failed_requests=self.failed_requests,
            endpoint=self.target.endpoint,
        )

    def finish(self, phase: str, decision: str, reason: str) -> RolloutResult:
        result = self.result(decision, reason)
        self.journal.write(phase, result)
        return result
