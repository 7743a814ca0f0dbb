"""KServe's InferenceService of one model, in Knative mode: how it is built, and what its status can be believed to say.

What is believed, and why so little, was measured on a real KServe 0.21 with Knative Serving 0.48: after a patch the whole old
status, Ready=True included, may stand for many seconds; `observedGeneration` is another object's; `traffic` names the newest
*ready* revision, which may be the one before. So a revision counts only by its own name, its own model and its own traffic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paraserve.components.deploy.rollout import ServedModel
from paraserve.components.exported import read_description
from paraserve.components.storage import GCS, join

GROUP, VERSION, PLURAL = "serving.kserve.io", "v1beta1", "inferenceservices"
REVISION_URI = "internal.serving.kserve.io/storage-initializer-sourceuri"
"""Annotation of a Knative revision: the model that it loads."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "paraserve"}
LATEST, PREVIOUS = "latest", "prev"
"""Tags that KServe gives the newest ready revision and the one before it, each with an address of its own."""
MAX_LABEL = 63
_FAILED_REASONS = ("RevisionFailed", "ReconcileFailed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a wanted revision has come."""

    arrived: bool = False
    """It is ready, and has its share of the traffic."""
    waiting_for: str = ""
    failure: str = ""
    """Why it will not come; "" as long as it may."""


def check_names(name: str, namespace: str) -> None:
    """Raises ValueError for names that KServe accepts and fails on later."""
    host = f"{name}-predictor-{namespace}"
    if len(host) > MAX_LABEL:
        raise ValueError(
            f"'{host}' has {len(host)} characters, KServe needs it as a label of at most {MAX_LABEL}; "
            f"shorten the model name or the namespace by {len(host) - MAX_LABEL}"
        )


def storage_uri(model: ServedModel) -> str:
    """What KServe's storage initializer copies: the prefix with one numeric folder. Raises ValueError unless it is on gs://."""
    if not model.model_uri.startswith(GCS):
        raise ValueError(
            f"the model is at {model.model_uri}, which a cluster's storage initializer cannot read; "
            "register it in a registry on gs:// (parameter `registry`) to serve it with KServe"
        )
    return model.model_uri


def model_patch(model: ServedModel, percent: int) -> dict[str, Any]:
    """A merge patch that makes `model` the newest one, with `percent` of the traffic (0 to 100)."""
    return {"spec": {"predictor": {"canaryTrafficPercent": _checked(percent), "model": _model_fields(model)}}}


def percent_patch(percent: int) -> dict[str, Any]:
    """A merge patch of the newest revision's share alone. 100 is written out: a share left out would keep the old one."""
    return {"spec": {"predictor": {"canaryTrafficPercent": _checked(percent)}}}


def build(name: str, namespace: str, model: ServedModel, service_account: str, progress_deadline: float) -> dict[str, Any]:
    """A new InferenceService as the API takes it. Whatever stands in it but model and percentage must never change after.

    Args:
        progress_deadline: seconds after which Knative gives up a revision that does not become ready.
    """
    import kserve
    from kubernetes.client import ApiClient, V1ObjectMeta

    fields = _model_fields(model)
    service = kserve.V1beta1InferenceService(
        api_version=f"{GROUP}/{VERSION}",
        kind="InferenceService",
        metadata=V1ObjectMeta(
            name=name,
            namespace=namespace,
            labels=MANAGED_BY,
            annotations={
                "serving.kserve.io/deploymentMode": "Knative",
                "serving.kserve.io/enable-tag-routing": "true",
                "serving.knative.dev/progress-deadline": f"{max(1, round(progress_deadline))}s",
            },
        ),
        spec=kserve.V1beta1InferenceServiceSpec(
            predictor=kserve.V1beta1PredictorSpec(
                min_replicas=1,
                canary_traffic_percent=100,
                service_account_name=service_account or None,
                model=kserve.V1beta1ModelSpec(
                    model_format=kserve.V1beta1ModelFormat(name="tensorflow"),
                    protocol_version="v1",
                    runtime_version=fields["runtimeVersion"],
                    storage_uri=fields["storageUri"],
                ),
            )
        ),
    )
    built: dict[str, Any] = ApiClient().sanitize_for_serialization(service)
    del built["spec"]["predictor"]["model"]["name"]  # the SDK fills in an empty one; the webhook refuses names here
    return built


def _model_fields(model: ServedModel) -> dict[str, str]:
    # The runtime's default is TF Serving 2.6, which does not load what a newer TensorFlow saved.
    versions = read_description(join(model.model_uri, "1")).versions
    return {"storageUri": storage_uri(model), "runtimeVersion": versions["tensorflow"]}


def _checked(percent: int) -> int:
    if not 0 <= percent <= 100:  # KServe accepts 150, and then serves as before
        raise ValueError(f"{percent} is no percentage of traffic; give 0 to 100")
    return percent


def wants(service: Mapping[str, Any]) -> tuple[str, int | None]:
    """The model's URI and the newest revision's share that the object asks for."""
    predictor = service["spec"]["predictor"]
    return predictor.get("model", {}).get("storageUri", ""), predictor.get("canaryTrafficPercent")


def created_revision(service: Mapping[str, Any]) -> str:
    """The newest revision by the status; "" before there is any."""
    name: str = _component(service).get("latestCreatedRevision", "")
    return name


def progress(service: Mapping[str, Any], created_uri: str, uri: str, percent: int) -> Progress:
    """Whether the revision that loads `uri` is ready and has at least `percent` of the traffic.

    "At least", since a champion whose rival was never noticed keeps all of it.

    Args:
        created_uri: what the revision `created_revision(service)` itself says that it loads; "" where there is none.
    """
    status = service.get("status", {})
    mode = status.get("deploymentMode", "Knative")
    if mode != "Knative":
        return Progress(failure=f"its deployment mode is {mode}, where KServe ignores the canary's share; it must be Knative")
    if failure := _failure(status, of_ours=created_uri == uri):
        return Progress(failure=failure)
    name, component = created_revision(service), _component(service)
    if created_uri != uri:
        return Progress(
            waiting_for=f"a revision that loads {uri} (the newest, {name or 'none'}, loads {created_uri or 'nothing'})"
        )
    if component.get("latestReadyRevision") != name:
        return Progress(waiting_for=f"revision {name} to become ready")
    shares = [entry.get("percent", 0) for entry in component.get("traffic", []) if entry.get("revisionName") == name]
    if not shares or sum(shares) < percent:
        return Progress(waiting_for=f"revision {name} to have {percent} % of the traffic, not {sum(shares)} %")
    if _condition(status, "Ready").get("status") != "True":
        return Progress(waiting_for="the service to be ready")
    return Progress(arrived=True)


def _failure(status: Mapping[str, Any], of_ours: bool) -> str:
    """Why it failed. `of_ours`: the newest revision is the wanted one, so that what is said of a revision is said of it."""
    model, ready = status.get("modelStatus", {}), _condition(status, "Ready")
    transition = model.get("transitionStatus")
    if transition == "InvalidSpec" or (transition == "BlockedByFailedLoad" and of_ours):
        return f"{transition}: {model.get('lastFailureInfo', {}).get('message', 'KServe gives no message')}"
    if of_ours and ready.get("status") == "False" and ready.get("reason") in _FAILED_REASONS:
        return f"{ready['reason']}: {ready.get('message', 'KServe gives no message')}"
    return ""


def _component(service: Mapping[str, Any]) -> Mapping[str, Any]:
    component: Mapping[str, Any] = service.get("status", {}).get("components", {}).get("predictor", {})
    return component


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
