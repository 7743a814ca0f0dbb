"""TF_CONFIG, the environment variable that tells a TensorFlow process its cluster and its place in it
(https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "TF_CONFIG"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """One process's view of the cluster."""

    cluster: Mapping[str, Sequence[str]]
    """Job name to addresses (host:port)."""
    job: str
    index: int

    def __post_init__(self) -> None:
        addresses = self.cluster.get(self.job, ())
        if not 0 <= self.index < len(addresses):
            raise ValueError(
                f"{VARIABLE} names task {self.index} of job '{self.job}', which has {len(addresses)} addresses; correct it"
            )

    @property
    def address(self) -> str:
        return self.cluster[self.job][self.index]

    def to_json(self) -> str:
        jobs = {job: list(addresses) for job, addresses in self.cluster.items()}
        return json.dumps({"cluster": jobs, "task": {"type": self.job, "index": self.index}})


def from_environment() -> TaskConfig:
    """Reads TF_CONFIG. Raises ValueError that says what is wrong with it.

    An `evaluator` job is left out: TensorFlow's coordinator hangs on one (tensorflow#46169), and workers evaluate here.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        return TaskConfig(
            cluster={job: addresses for job, addresses in cluster.items() if job != "evaluator"},
            job=task["type"],
            index=int(task["index"]),
        )
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f'{VARIABLE} is {text!r}; set it to {{"cluster": {{"ps": ["host:port"]}}, "task": {{"type": "ps", "index": 0}}}}'
        ) from error
