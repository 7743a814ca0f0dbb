"""Rolling out on KServe (Knative mode): one InferenceService a model, its canary led by `canaryTrafficPercent`.

Tried against recorded objects of a real KServe and a small fake of its API, not against a cluster. KServe tells nobody which
revision answered a request, so a step's requests are shared out by the percentage in force and every failed one is laid to
the new version; latencies are not judged; predictions are compared through the tagged addresses of both revisions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from paraserve.components.deploy import inference_service as isvc
from paraserve.components.deploy.asking import probability_of
from paraserve.components.deploy.champion import champion_of
from paraserve.components.deploy.config import DeployConfig
from paraserve.components.deploy.journal import RolloutResult
from paraserve.components.deploy.kubernetes_api import KubernetesApi
from paraserve.components.deploy.observation import Observation, Reply, Side
from paraserve.components.deploy.replay import Replay, read_rows
from paraserve.components.deploy.rollout import CanaryError, ServedModel

PAIRED_ROWS = 50
RESTORE_SECONDS = 600.0
"""How long the champion may take to come back; longer than a new version's deadline, since there is nothing to fall back to."""
POLL_SECONDS = 1.0
_NO_ANSWER = (requests.RequestException, ValueError, TypeError, KeyError)


def deploy_kserve(config: DeployConfig) -> RolloutResult:
    """Rolls a version out as an InferenceService; run again, it finds what it did before.

    Raises:
        ValueError: names too long for KServe, a model that is not on gs://, no raw sample, an InferenceService of that name
            that paraserve did not make. Nothing was changed then.
        RuntimeError: the cluster refused or did not answer.
    """
    from paraserve.components.deploy.job import roll_out

    model = ServedModel(version=config.version, model_uri=config.model_uri)
    isvc.storage_uri(model)
    rows = read_rows(config.shards)
    api = KubernetesApi.connect(config.kserve_namespace)
    isvc.check_names(config.model_name, api.namespace)
    target = KServeTarget(
        api,
        config.model_name,
        champion_of(config.registry, config.model_name),
        model,
        rows,
        start_deadline=config.rollout.start_deadline,
        service_account=config.service_account,
    )
    traffic = Replay(target.endpoint, config.model_name, rows, with_grpc=False)
    try:
        return roll_out(config, target, traffic)
    finally:
        traffic.close()


class KServeTarget:
    """A rollout.Target over one InferenceService."""

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        champion: ServedModel | None,
        model: ServedModel,
        rows: Sequence[Mapping[str, str]],
        start_deadline: float,
        service_account: str = "",
        address: Callable[[str], str] | None = None,
    ):
        """`address` gives the base URL of a host of the namespace; by default that of the cluster's own DNS."""
        self.api, self.name, self._champion, self.model = api, name, champion, model
        self.rows, self.start_deadline, self.service_account = rows[:PAIRED_ROWS], start_deadline, service_account
        self.address = address or (lambda host: f"http://{host}.{api.namespace}.svc.cluster.local")
        self.percent = 0
        self._champion_says: list[float] = []

    @property
    def champion(self) -> ServedModel | None:
        return self._champion

    @property
    def endpoint(self) -> str:
        return self.address(f"{self.name}-predictor")

    def restore(self) -> None:
        service = self.api.get_service(self.name)
        if service and not isvc.MANAGED_BY.items() <= service["metadata"].get("labels", {}).items():
            raise ValueError(f"InferenceService {self.name} in {self.api.namespace} is not paraserve's; use another model_name")
        if self._champion is None:
            if service:
                self._remove()
        elif service is None:
            self._create(self._champion)
            self._wait(self._champion, 100, RESTORE_SECONDS)
        else:
            self._back_to(self._champion, service)

    def _back_to(self, champion: ServedModel, service: Mapping[str, Any]) -> None:
        """Alone with all traffic. "Newest" means newest *ready*: while the champion's own revision is not ready, any share
        above 0 would go to the version that is to disappear."""
        uri, percent = isvc.wants(service)
        if uri != isvc.storage_uri(champion):
            self.api.patch_service(self.name, isvc.percent_patch(0))
            self.api.patch_service(self.name, isvc.model_patch(champion, 0))
            percent = 0
        if percent not in (100, None):  # none stands for all
            self._wait(champion, percent, RESTORE_SECONDS)
            self.api.patch_service(self.name, isvc.percent_patch(100))
        self._wait(champion, 100, RESTORE_SECONDS)

    def start(self) -> None:
        if self._champion is None:
            self._create(self.model)
            self._wait_or_give_up(100)
            self._ask_patiently(self.endpoint)
            return
        self.api.patch_service(self.name, isvc.model_patch(self.model, 0))
        self._wait_or_give_up(0)
        self._ask_patiently(self._tagged(isvc.LATEST))
        self._champion_says = self._ask(self._tagged(isvc.PREVIOUS))

    def set_weight(self, percent: int) -> None:
        self.api.patch_service(self.name, isvc.percent_patch(percent))
        self._wait_or_give_up(percent)
        self.percent = percent

    def observe(self, replies: Sequence[Reply]) -> Observation:
        canary = round(len(replies) * self.percent / 100)
        failed = sum(reply.probability is None for reply in replies)
        return Observation(
            stable=Side(requests=len(replies) - canary),
            canary=Side(requests=canary, errors=min(failed, canary)),
            pairs=self._pairs(),
        )

    def promote(self) -> None:
        self.api.patch_service(self.name, isvc.percent_patch(100))
        self._wait(self.model, 100, RESTORE_SECONDS)

    def _create(self, model: ServedModel) -> None:
        self.api.create_service(
            isvc.build(self.name, self.api.namespace, model, self.service_account, progress_deadline=self.start_deadline)
        )

    def _remove(self) -> None:
        self.api.delete_service(self.name)
        deadline = time.monotonic() + RESTORE_SECONDS
        while self.api.get_service(self.name):  # a finalizer keeps it for a while, and a new one would be refused
            if time.monotonic() > deadline:
                raise RuntimeError(f"InferenceService {self.name} is still there {RESTORE_SECONDS:.0f} s after its deletion")
            time.sleep(POLL_SECONDS)

    def _wait_or_give_up(self, percent: int) -> None:
        try:
            self._wait(self.model, percent, self.start_deadline, failing=True)
        except TimeoutError as error:
            raise CanaryError(str(error)) from error

    def _wait(self, model: ServedModel, percent: int, seconds: float, failing: bool = False) -> None:
        """Until `model` is the newest, ready, and has `percent` of the traffic. Raises TimeoutError; with `failing` CanaryError
        as soon as KServe says that it will not come (which a restored champion must wait out: old failures stay there)."""
        uri, deadline = isvc.storage_uri(model), time.monotonic() + seconds
        while True:
            service = self.api.get_service(self.name) or {}
            created = isvc.created_revision(service)
            seen = isvc.progress(service, self.api.revision_uri(created) if created else "", uri, percent)
            if seen.arrived:
                return
            if failing and seen.failure:
                raise CanaryError(seen.failure)
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:.0f} s still waiting for {seen.waiting_for or 'recovery: ' + seen.failure}")
            time.sleep(POLL_SECONDS)

    def _pairs(self) -> list[tuple[float, float]]:
        try:
            says = self._ask(self._tagged(isvc.LATEST))
        except _NO_ANSWER:
            return []  # whether it fails is judged by the requests of the step
        return list(zip(self._champion_says or says, says, strict=True))

    def _ask_patiently(self, base: str) -> None:
        """A real prediction; a server that is ready may not have loaded its model yet (only its port is probed)."""
        deadline = time.monotonic() + self.start_deadline
        while True:
            try:
                self._ask(base)
                return
            except _NO_ANSWER as error:
                if time.monotonic() > deadline:
                    raise CanaryError(f"it does not predict: {error}") from error
            time.sleep(POLL_SECONDS)

    def _ask(self, base: str) -> list[float]:
        url = f"{base}/v1/models/{self.name}:predict"
        with requests.Session() as session:
            session.trust_env = False  # a proxy of the environment does not know the cluster's names
            response = session.post(url, json={"instances": list(self.rows)}, timeout=30)
        response.raise_for_status()
        return [probability_of(prediction) for prediction in response.json()["predictions"]]

    def _tagged(self, tag: str) -> str:
        return self.address(f"{tag}-{self.name}-predictor")
