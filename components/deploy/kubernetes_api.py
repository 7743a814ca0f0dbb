"""The few calls to a cluster's API that a rollout on KServe takes, with its refusals in words."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from paraserve.components.deploy.inference_service import GROUP, PLURAL, REVISION_URI, VERSION

TIMEOUT_SECONDS = 30
_RIGHTS = (
    "; the step's service account needs get, create, patch and delete on inferenceservices.serving.kserve.io "
    "and get on revisions.serving.knative.dev"
)


class KubernetesApi:
    """InferenceServices, and the Knative revisions behind them, in one namespace."""

    def __init__(self, custom_objects: Any, namespace: str):
        """`custom_objects`: a kubernetes.client.CustomObjectsApi."""
        self.custom_objects, self.namespace = custom_objects, namespace

    @classmethod
    def connect(cls, namespace: str = "") -> "KubernetesApi":
        """From inside a pod or by the kubeconfig; "" is the pod's own namespace, or `default` outside of one."""
        from kserve.utils.utils import get_default_target_namespace
        from kubernetes import client, config

        config.load_config()
        return cls(client.CustomObjectsApi(), namespace or get_default_target_namespace())

    def get_service(self, name: str) -> dict[str, Any] | None:
        """None where there is none."""
        return self._find(GROUP, VERSION, PLURAL, name)

    def create_service(self, service: dict[str, Any]) -> None:
        with _refusals("create", f"InferenceService {service['metadata']['name']}"):
            self.custom_objects.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, service, _request_timeout=TIMEOUT_SECONDS
            )

    def patch_service(self, name: str, patch: dict[str, Any]) -> None:
        """A merge patch: KServe's own types know no strategic one."""
        self._call("patch", GROUP, VERSION, PLURAL, name, patch)

    def delete_service(self, name: str) -> None:
        self._call("delete", GROUP, VERSION, PLURAL, name)

    def revision_uri(self, name: str) -> str:
        """The model that a Knative revision loads; "" where there is no such revision."""
        revision = self._find("serving.knative.dev", "v1", "revisions", name) or {"metadata": {}}
        uri: str = revision["metadata"].get("annotations", {}).get(REVISION_URI, "")
        return uri

    def _find(self, group: str, version: str, plural: str, name: str) -> dict[str, Any] | None:
        from kubernetes.client import ApiException

        try:
            return self._call("get", group, version, plural, name)
        except RuntimeError as error:
            if isinstance(error.__cause__, ApiException) and error.__cause__.status == 404:
                return None
            raise

    def _call(self, verb: str, group: str, version: str, plural: str, name: str, *body: Any) -> dict[str, Any]:
        call = getattr(self.custom_objects, f"{verb}_namespaced_custom_object")
        with _refusals(verb, f"{plural} {name}"):
            answer: dict[str, Any] = call(group, version, self.namespace, plural, name, *body, _request_timeout=TIMEOUT_SECONDS)
        return answer


@contextlib.contextmanager
def _refusals(verb: str, what: str) -> Iterator[None]:
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HTTPError as error:
        raise RuntimeError(f"the cluster did not answer to {verb} {what}: {error}") from error
    except ApiException as error:
        try:
            said = json.loads(error.body)["message"]
        except (TypeError, ValueError, KeyError):
            said = error.reason
        remedy = _RIGHTS if error.status == 403 and "forbidden" in said else ""
        raise RuntimeError(f"the cluster refused to {verb} {what}: {error.status}, {said}{remedy}") from error
