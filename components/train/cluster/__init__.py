"""The servers of a run: what starts, watches and stops workers and parameter servers."""

from typing import Protocol

import tensorflow as tf

WORKER, PARAMETER_SERVER, COORDINATOR = "worker", "ps", "chief"
"""Job names, as ParameterServerStrategy wants them."""


class Cluster(Protocol):
    """Running servers. Everything above this is the same code, whatever started them."""

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Addresses of all tasks, the coordinator's included."""
        ...

    def lost(self) -> dict[str, str]:
        """Device names such as /job:worker/replica:0/task:1 of the servers that are gone, with what is known of the cause."""
        ...

    def stop(self) -> None:
        """Ends every server; safe to call twice."""
        ...


def device(job: str, index: int) -> str:
    """The device name of a task, as TensorFlow writes it."""
    return f"/job:{job}/replica:0/task:{index}"
