"""The state machine's order of events, and what it does when something else than the canary fails."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from paraserve.components.deploy.config import RolloutConfig
from paraserve.components.deploy.journal import Journal, RolloutResult, read_journal
from paraserve.components.deploy.observation import Observation, Reply, Side
from paraserve.components.deploy.rollout import CanaryError, ServedModel, run_rollout

CONFIG = RolloutConfig(step_requests=100, warmup_requests=10)


class RecordingTarget:
    """Writes down what it is asked to do; half of what is sent reaches the canary, `errors` of it fails."""

    endpoint = "http://127.0.0.1:1"

    def __init__(
        self, champion: bool = True, errors: int = 0, start_fails: bool = False, share: float = 0.5, trouble: str = ""
    ):
        self.champion = ServedModel(version="v1", model_uri="m") if champion else None
        self.errors, self.start_fails, self.share, self.trouble = errors, start_fails, share, trouble
        self.events: list[str] = []

    def restore(self) -> None:
        self.events.append("restore")

    def start(self) -> None:
        self.events.append("start")
        if self.start_fails:
            raise CanaryError("it does not load")

    def set_weight(self, percent: int) -> None:
        self.events.append(f"weight {percent}")

    def observe(self, replies: Sequence[Reply]) -> Observation:
        canary = int(len(replies) * self.share) if self.champion else len(replies)
        stable = Side(requests=len(replies) - canary) if self.champion else Side()
        return Observation(stable=stable, canary=Side(requests=canary, errors=min(self.errors, canary)), trouble=self.trouble)

    def promote(self) -> None:
        self.events.append("promote")


class Traffic:
    def send(self, count: int) -> list[Reply]:
        return [Reply(row=0, seconds=0.001, probability=0.5)] * count


def roll(
    target: RecordingTarget, folder: Path, commit_error: Exception | None = None, config: RolloutConfig = CONFIG
) -> RolloutResult:
    def commit(reason: str) -> None:
        target.events.append("commit")
        if commit_error:
            raise commit_error

    return run_rollout(target, config, Traffic(), Journal(serving=str(folder), run_id="r1", version="v2"), commit)


def test_promotes_after_all_steps_and_commits_before_the_old_one_goes(tmp_path: Path) -> None:
    target = RecordingTarget()
    result = roll(target, tmp_path)

    assert target.events == ["restore", "start", "weight 10", "weight 50", "weight 100", "commit", "promote"]
    assert (result.decision, result.steps, result.failed_requests) == ("promoted", (10, 50, 100), 0)
    assert result.requests == {"stable": 165, "canary": 165}
    assert read_journal(str(tmp_path))["phase"] == "promoted"


def test_a_first_model_goes_to_100_at_once(tmp_path: Path) -> None:
    target = RecordingTarget(champion=False)

    assert roll(target, tmp_path).steps == (100,)
    assert target.events == ["restore", "start", "weight 100", "commit", "promote"]


@pytest.mark.parametrize(
    ("target", "events", "reason"),
    [
        (RecordingTarget(errors=40), ["weight 10", "restore"], "failed 40 of 50"),
        (RecordingTarget(start_fails=True), ["restore"], "does not load"),
        (RecordingTarget(trouble="its process is gone"), ["weight 10", "restore"], "process is gone"),
        (RecordingTarget(champion=False, errors=90), ["weight 100", "restore"], "no champion ran beside it"),
    ],
)
def test_a_bad_canary_is_rolled_back(tmp_path: Path, target: RecordingTarget, events: list[str], reason: str) -> None:
    result = roll(target, tmp_path)

    assert target.events == ["restore", "start", *events]
    assert result.decision == "rolled_back"
    assert reason in result.reason


def test_a_canary_that_gets_no_requests_in_time_is_rolled_back(tmp_path: Path) -> None:
    config = RolloutConfig(step_requests=100, warmup_requests=10, step_deadline=0.05)
    result = roll(RecordingTarget(share=0.0), tmp_path, config=config)

    assert result.decision == "rolled_back"
    assert "20 are needed" in result.reason


def test_a_registry_that_fails_leaves_the_champion_and_is_no_rollback(tmp_path: Path) -> None:
    target = RecordingTarget()
    with pytest.raises(OSError, match="no permission"):
        roll(target, tmp_path, commit_error=OSError("no permission"))

    assert target.events[-2:] == ["commit", "restore"]


def test_only_the_same_run_and_version_find_their_decision(tmp_path: Path) -> None:
    roll(RecordingTarget(errors=40), tmp_path)

    def decided(run_id: str, version: str) -> bool:
        return Journal(serving=str(tmp_path), run_id=run_id, version=version).decided() is not None

    assert decided("r1", "v2")
    assert not decided("r2", "v2")
    assert not decided("r1", "v3")
