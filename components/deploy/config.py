"""What can be set about a deployment, with its checks."""

from dataclasses import dataclass

from paraserve.components.register.registry import check_name

TARGETS = ("local", "kserve")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"`{name}` is {value}; give a value from {low} to {high}")


def parse_steps(text: str) -> tuple[int, ...]:
    """Reads "10,50,100". Raises ValueError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"`canary_steps` is '{text}'; give whole percentages with commas, such as 10,50,100") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutConfig:
    """How a canary is led to all traffic, and when it is found to be worse."""

    canary_steps: tuple[int, ...] = (10, 50, 100)
    """Percent of the traffic, rising, the last 100."""
    step_requests: int = 400
    """Replayed requests in each step, 10 to 1,000,000; more are sent while the canary has had fewer than `min_requests`."""
    min_requests: int = 20
    """Requests that the canary must have had in a step before it is judged; without them in time it is rolled back."""
    warmup_requests: int = 20
    """Replayed requests at the start of each step that are not judged."""
    alpha: float = 0.01
    """Probability of rolling back a canary that is as good, split over the tests; 1e-6 to 0.2."""
    max_latency_increase: float = 0.5
    """Tolerated increase, 0.5 for 50 %; at least 0.25, since smaller ones drown in autocorrelation."""
    max_error_rate: float = 0.01
    """Tolerated share of failing requests where no champion runs beside to compare with; 0 (exclusive) to 0.5."""
    max_mean_shift: float = 0.1
    """Tolerated difference of the mean predicted probability, 0 (exclusive) to 1."""
    start_deadline: float = 120.0
    """Seconds until the new version must have loaded and answered."""
    step_deadline: float = 120.0
    """Seconds in which a step must reach `min_requests`."""

    def __post_init__(self) -> None:
        steps = self.canary_steps
        if not steps or list(steps) != sorted(set(steps)) or steps[0] < 1 or steps[-1] != 100:
            raise ValueError(
                f"`canary_steps` is {','.join(map(str, steps))}; give rising percentages that end in 100, as 10,50,100"
            )
        _between("step_requests", self.step_requests, 10, 1_000_000)
        _between("max_latency_increase", self.max_latency_increase, 0.25, 100)
        _between("alpha", self.alpha, 1e-6, 0.2)
        _between("max_error_rate", self.max_error_rate, 1e-6, 0.5)
        _between("max_mean_shift", self.max_mean_shift, 1e-6, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployConfig:
    """One deployment."""

    version: str
    """The registered version that is to serve."""
    model_uri: str
    """Its prefix, a path or gs:// address, with one numeric folder that holds the SavedModel."""
    shards: str
    """The packed data set whose raw sample is replayed."""
    registry: str
    model_name: str
    """As the registry knows it."""
    serving: str
    """The serving folder: where the endpoint's state lives. A path for `local`; for `kserve` gs:// works too."""
    run_id: str
    rollout: RolloutConfig = RolloutConfig()
    target: str = "local"
    """local or kserve."""
    serving_port: int = 8501
    """The endpoint's port for REST and gRPC, 1 to 65535; `local` only."""
    drill_canary_errors: float = 0.0
    """Rehearses a rollback: the share of its requests that the new version's server fails on purpose, 0 to 1; `local` only."""
    kserve_namespace: str = ""
    """The InferenceService's namespace; `kserve` only."""
    service_account: str = ""
    """The InferenceService's service account, "" for the namespace's default; `kserve` only."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"unknown target '{self.target}'; use {' or '.join(TARGETS)}")
        check_name(self.model_name)
        _between("serving_port", self.serving_port, 1, 65535)
        _between("drill_canary_errors", self.drill_canary_errors, 0, 1)
        for name in ("version", "model_uri", "shards", "registry", "serving", "run_id"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` is empty; set it")
        if self.target == "local" and "://" in self.serving:
            raise ValueError(f"`serving` is {self.serving}; the local target needs a folder of this machine")
        if self.target == "kserve" and self.drill_canary_errors:
            raise ValueError("`drill_canary_errors` has no effect on KServe; set it to 0 or use the local target")
