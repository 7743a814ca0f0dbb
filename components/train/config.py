"""The settings of the train step, and their checks."""

import dataclasses
import math
from dataclasses import dataclass

from paraserve.components.features.spec import FeatureSpec

SCHEDULES = ("constant", "exponential", "cosine")
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "sgd", "lazy_adam", "ftrl")
MODELS = ("wide_deep", "deepfm", "dcn_v2", "dlrm")
SHARDINGS = ("hash", "range")
PARTITIONERS = ("fixed", "min_size")
WIRE_DTYPES = ("float32", "bfloat16", "float16")
COMPUTE_DTYPES = ("float32", "bfloat16")
SERVING_DTYPES = ("float32", "bfloat16", "int8")
COMPRESSIONS = ("none", "topk", "auto")
OF_SMALL_SQUARES = ("rowwise_adagrad", "lazy_adam")
"""Optimizers that divide by mean squares of gradients, from 0 on."""
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
    dense_optimizer: str = ""
    """One of OPTIMIZERS for the network's weights; empty for the same as the embeddings'."""
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
    sharding: str = "hash"
    """How keys of dynamic tables are dealt to servers: hash, or range (of the key, as a signed number)."""
    partitioner: str = "fixed"
    """How static tables are cut over the servers: fixed (over all), or min_size (no part below 256 KiB)."""
    exchange_steps: int = 4
    """Batches of a worker from one exchange with the servers to the next: the rows that any of them needs are pulled once and
    held, and their gradients gathered until then. 1 exchanges at each batch."""
    overlap: bool = True
    """Whether the next exchange's pull and the last one's push run while a worker computes."""
    compute_dtype: str = "float32"
    """One of COMPUTE_DTYPES, in which layers compute; weights stay float32."""
    pull_dtype: str = "float32"
    """One of WIRE_DTYPES, for weights on their way to workers."""
    push_dtype: str = "float32"
    """One of WIRE_DTYPES, for gradients on their way to servers; 16 bits are rounded at random, so that their mean is right."""
    dense_compression: str = "none"
    """For the network's gradients: topk sends the largest 1/32 and adds the rest to the next; auto measures which is faster."""
    staleness_bound: int = 0
    """Steps that the servers may have gone on, by other workers, between a pull and its push; 0 for no bound."""
    staleness_action: str = "refuse"
    """At the bound: refuse the gradients and count them, or hold workers back before they pull."""
    nonfinite: str = "stop"
    """Gradients with NaN or infinite numbers: stop the run, or drop those of the exchange and count them."""
    snapshot_shards: int = 0
    """Shards from one snapshot within an epoch to the next; 0 for none by this count."""
    snapshot_seconds: float = 0.0
    """Seconds from one snapshot within an epoch to the next; 0 for none by this clock."""
    serving_max_bytes: int = 0
    """Of the served model's weights, rows and keys: the rows of the most frequent keys that fit; 0 for all."""
    serving_dtype: str = "float32"
    """One of SERVING_DTYPES, of the exported rows."""
    seed: int = 0
    """Of the initial weights and the order of shards."""
    resume_from: str = ""
    """Place of a snapshot to start from; empty starts anew. A run that is run again resumes from its own by itself."""

    def __post_init__(self) -> None:
        for name, high in _COUNTS.items():
            _whole(self, name, 1, high)
        for name in ("warmup_steps", "decay_steps", "patience", "seed", "staleness_bound", "snapshot_shards"):
            _whole(self, name, 0, 2**31 - 1)
        _whole(self, "serving_max_bytes", 0, 2**63 - 1)
        for name in ("learning_rate", "l2", "embedding_init", "snapshot_seconds"):
            _at_least_0(self, name)
        for name, known in _CHOICES.items():
            _one_of(self, name, known)
        self._check_schedule()
        self._check_staleness()
        self._check_wire()
        if self.model not in MODELS and ":" not in self.model:
            raise ValueError(
                f"`model` is '{self.model}'; use one of {', '.join(MODELS)}, or your own as package.module:function"
            )
        if not 0 < self.decay_rate < 1:
            raise ValueError(f"`decay_rate` is {self.decay_rate}; give a number above 0 and below 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` is {self.dropout}; give a number from 0 to below 1")
        _ = self.hidden_widths

    def _check_schedule(self) -> None:
        """A cosine that ends early leaves steps that train nothing."""
        if self.schedule == "constant" and self.decay_steps:
            raise ValueError(
                f"`decay_steps` is {self.decay_steps} but `schedule` is constant; set it to 0, or choose a schedule"
            )

    def _check_staleness(self) -> None:
        if self.staleness_bound and self.staleness_bound < self.exchange_steps:
            raise ValueError(
                f"`staleness_bound` is {self.staleness_bound}, below the {self.exchange_steps} steps that one exchange holds "
                "(`exchange_steps`): nothing could be applied; raise it, or lower `exchange_steps`"
            )
        if self.staleness_action == "hold" and not self.staleness_bound:
            raise ValueError("`staleness_action` is hold, but `staleness_bound` is 0, which sets no bound; give one")

    def _check_wire(self) -> None:
        """Held for several batches, the optimizer's slots travel as well."""
        squares = [name for name in ("optimizer", "dense_optimizer") if getattr(self, name) in OF_SMALL_SQUARES]
        halves = [name for name in ("pull_dtype", "push_dtype") if getattr(self, name) == "float16"]
        if squares and halves and self.exchange_steps > 1:
            raise ValueError(
                f"`{halves[0]}` is float16, in which the squares of small gradients are 0, and with `exchange_steps` "
                f"{self.exchange_steps} those of `{squares[0]}` {getattr(self, squares[0])} would travel; use bfloat16, or set "
                "`exchange_steps` to 1"
            )

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


_COUNTS = {"epochs": 10**6, "batch_size": 2**20, "workers": 256, "parameter_servers": 256, "exchange_steps": 256}
_CHOICES = {
    "schedule": SCHEDULES,
    "optimizer": OPTIMIZERS,
    "dense_optimizer": ("", *OPTIMIZERS),
    "sharding": SHARDINGS,
    "partitioner": PARTITIONERS,
    "compute_dtype": COMPUTE_DTYPES,
    "pull_dtype": WIRE_DTYPES,
    "push_dtype": WIRE_DTYPES,
    "dense_compression": COMPRESSIONS,
    "staleness_action": ("refuse", "hold"),
    "nonfinite": ("stop", "drop"),
    "serving_dtype": SERVING_DTYPES,
}


def check_schedule_lasts(config: TrainConfig, planned_steps: int) -> None:
    """Raises ValueError when the learning rate is 0 long before the planned steps are done."""
    if config.schedule == "cosine" and config.decay_steps and config.decay_steps + config.warmup_steps < planned_steps:
        end = config.decay_steps + config.warmup_steps
        raise ValueError(
            f"the cosine schedule reaches 0 at step {end} of {planned_steps}, and nothing would be trained after it; set "
            f"`decay_steps` to 0 (the planned steps), or to at least {planned_steps - config.warmup_steps}, or lower `epochs`"
        )


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
        choices = ", ".join(choice or "''" for choice in known)
        raise ValueError(f"`{name}` is '{getattr(config, name)}'; use one of {choices}")
