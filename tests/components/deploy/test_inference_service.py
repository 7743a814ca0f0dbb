"""What the status of an InferenceService is believed to say, held against objects recorded from a real KServe 0.21."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paraserve.components.deploy import inference_service as isvc
from paraserve.components.deploy.inference_service import Progress
from paraserve.components.deploy.rollout import ServedModel

RECORDED = Path(__file__).parent / "recorded"


def progress_of(file: str, uri: str, percent: int, since: float = 0.0, until: float = 1e9) -> Iterator[tuple[float, Progress]]:
    """What `progress` says of each recorded object in a span of time; revisions are known as the API server knew them then."""
    revisions: dict[str, str] = {}
    for line in (RECORDED / file).read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "CORE":
            revisions = {r["name"]: r["uri"] for r in event["revisions"]}
        elif event["event"] in ("ADDED", "MODIFIED") and since <= event["t"] <= until:
            service = event["object"]
            yield event["t"], isvc.progress(service, revisions.get(isvc.created_revision(service), ""), uri, percent)


def arrival(file: str, uri: str, percent: int, since: float = 0.0) -> float:
    return next(t for t, seen in progress_of(file, uri, percent, since) if seen.arrived)


def test_each_step_arrives_when_it_really_did() -> None:
    file, new = "k02-canary-10-50-100.jsonl", "s3://models/demo/v2-load3"
    assert arrival(file, "s3://models/demo/v1", 100) == 3.34
    # Patched at 4.93: for a while everything old still says Ready; the revision itself was ready at 19.04.
    assert arrival(file, new, 10, since=4.93) == 19.34
    assert arrival(file, new, 50, since=20.87) == 21.29
    assert arrival(file, new, 100, since=22.8) == 23.25


def test_the_steps_of_a_rollback() -> None:
    file, old = "k03-canary-10-rollback.jsonl", "s3://models/demo/v1"
    # The restored model is a new revision: the first one, which loads the same URI, is not it.
    assert arrival(file, old, 0, since=12.87) == 16.0
    assert arrival(file, old, 100, since=17.53) == 18.09


def test_a_model_that_is_not_there_fails_at_once() -> None:
    seen = list(progress_of("k04-canary-missing-uri.jsonl", "s3://models/demo/v2-missing", 10, since=5.07))
    assert not any(s.arrived for _, s in seen)
    t, failed = next((t, s) for t, s in seen if s.failure)
    assert t == 7.09
    assert failed.failure.startswith("BlockedByFailedLoad: ")


def test_an_invalid_spec_fails_though_ready_stays_true() -> None:
    seen = list(progress_of("k08-unknown-runtime.jsonl", "s3://models/demo/v2", 10, since=7.03, until=27.0))
    assert not any(s.arrived for _, s in seen)
    assert seen[-1][1].failure.startswith("InvalidSpec: ")
    # The failure's information stays after the repair, and means nothing then.
    assert arrival("k08-unknown-runtime.jsonl", "s3://models/demo/v1", 100, since=27.06) == 27.13


def test_standard_mode_is_refused() -> None:
    seen = isvc.progress({"status": {"deploymentMode": "Standard"}}, "", "gs://b/m", 10)
    assert "deployment mode is Standard, where KServe ignores" in seen.failure


def test_what_is_waited_for_is_said() -> None:
    assert (
        isvc.progress({}, "", "gs://b/m", 10).waiting_for == "a revision that loads gs://b/m (the newest, none, loads nothing)"
    )


@pytest.mark.parametrize(("namespace", "fits"), [("n" * 12, True), ("n" * 13, False)])
def test_names_fit_into_a_label(namespace: str, fits: bool) -> None:
    name = "m" * 40  # and `-predictor-` has 11
    if fits:
        isvc.check_names(name, namespace)
    else:
        with pytest.raises(ValueError, match=r"has 64 characters.*by 1$"):
            isvc.check_names(name, namespace)


@pytest.mark.parametrize("percent", [-1, 101, 150])
def test_percentages_that_kserve_would_accept(percent: int) -> None:
    with pytest.raises(ValueError, match=f"{percent} is no percentage"):
        isvc.percent_patch(percent)


@pytest.mark.parametrize("uri", ["/data/registry/ctr/v1/model", "ftp://host/model", ""])
def test_models_that_a_cluster_cannot_read(uri: str) -> None:
    with pytest.raises(ValueError, match="register it in a registry on gs://"):
        isvc.storage_uri(ServedModel(version="v1", model_uri=uri))
