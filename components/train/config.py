"""The settings of the train step, and their checks."""

import dataclasses
import math
from dataclasses import dataclass

from paraserve.components.features.spec import FeatureSpec

SCHEDULES = ("constant", "exponential", "cosine")
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "sgd", "lazy_adam", "ftrl")
MODELS = ("wide_deep", "deepfm", "dcn_v2", "dlrm")
EQUAL_DIMENSION_MODELS = ("deepfm", "dlrm")
"""Those that multiply embeddings with each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """What to train, how long, on how many servers."""

    shards: str
    """Place of the packed data set (ingest's output)."""
    snapshots: str
    """Place below which this run keeps its snapshots, in a folder of the run's id."""
    model: str = "deepfm"
    """One of MODELS, or a user's own as `package.module:function` (see models.ModelBuilder)."""
    epochs: int = 5
    """Passes over the train split, at most; 1 or more."""
    batch_size: int = 1024
    """Examples per step of a worker."""
    optimizer: str = "adagrad"
    """One of OPTIMIZERS, applied on the parameter servers as each worker's gradients arrive."""
    learning_rate: float = 0.05
    """Of the optimizer, before the schedule; 0 trains nothing."""
    schedule: str = "constant"
    """One of SCHEDULES, over the steps of all workers together."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly from 0; 0 for none."""
    decay_steps: int = 0
    """exponential: steps per factor `decay_rate`; cosine: steps until 0. 0 means the planned steps of the run."""
    decay_rate: float = 0.1
    """The factor of the exponential schedule, above 0 and below 1."""
    hidden_units: str = "256,128"
    """Widths of the deep part's layers, from the input up."""
    dropout: float = 0.0
    """Share of the deep part's activations dropped in training, from 0 to below 1."""
    l2: float = 0.0
    """Penalty on the squared norm of the embedding rows that a batch touches."""
    embedding_init: float = 0.01
    """Standard deviation of the initial embedding rows."""
    patience: int = 2
    """Epochs without a lower eval log loss before training stops early; 0 never stops."""
    workers: int = 2
    """Worker processes."""
    parameter_servers: int = 2
    """Parameter-server processes."""
    seed: int = 0
    """Of the initial weights and the order of shards."""
    resume_from: str = ""
    """Place of a snapshot to start from; empty starts anew. A run that is run again resumes from its own by itself."""

    def __post_init__(self) -> None:
        for name, high in (("epochs", 10**6), ("batch_size", 2**20), ("workers", 256), ("parameter_servers", 256)):
            _whole(self, name, 1, high)
        for name in ("warmup_steps", "decay_steps", "patience", "seed"):
            _whole(self, name, 0, 2**31 - 1)
        for name in ("learning_rate", "l2", "embedding_init"):
            _at_least_0(self, name)
        _one_of(self, "schedule", SCHEDULES)
        _one_of(self, "optimizer", OPTIMIZERS)
        if self.model not in MODELS and ":" not in self.model:
            raise ValueError(
                f"`model` is '{self.model}'; use one of {', '.join(MODELS)}, or your own as package.module:function"
            )
        if not 0 < self.decay_rate < 1:
            raise ValueError(f"`decay_rate` is {self.decay_rate}; give a number above 0 and below 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` is {self.dropout}; give a number from 0 to below 1")
        _ = self.hidden_widths

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """`hidden_units` as numbers. Raises ValueError when they are none."""
        try:
            widths = tuple(int(width) for width in self.hidden_units.split(","))
        except ValueError:
            widths = ()
        if not widths or min(widths) < 1:
            raise ValueError(f"`hidden_units` is '{self.hidden_units}'; give whole numbers above 0, such as 256,128")
        return widths

    def settings(self) -> dict[str, object]:
        """What decides the model (no places), for its description and for telling snapshots apart."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in ("shards", "snapshots", "resume_from")}


def check_model_fits(model: str, spec: FeatureSpec) -> None:
    """Raises ValueError when one of MODELS cannot be built over the spec's columns; a user's own model checks itself."""
    dimensions = {column.name: column.dimension for column in spec.embedded}
    if model in EQUAL_DIMENSION_MODELS and len(set(dimensions.values())) != 1:
        raise ValueError(
            f"the model '{model}' multiplies embeddings with each other and needs one dimension for all categorical and "
            f"list columns; the spec has {dimensions or 'no such column'}: make them equal, or use wide_deep or dcn_v2"
        )
    if model == "dlrm" and len(spec.embedded) + bool(spec.dense) < 2:
        raise ValueError(f"the model 'dlrm' multiplies pairs, and the spec has {dimensions} alone; add a column, or use deepfm")


def _whole(config: TrainConfig, name: str, low: int, high: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"`{name}` is {value}; give a whole number from {low} to {high}")


def _at_least_0(config: TrainConfig, name: str) -> None:
    value = getattr(config, name)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` is {value}; give a finite number of at least 0")


def _one_of(config: TrainConfig, name: str, known: tuple[str, ...]) -> None:
    if getattr(config, name) not in known:
        raise ValueError(f"`{name}` is '{getattr(config, name)}'; use one of {', '.join(known)}")
