"""A worker or parameter server: a process that serves TensorFlow's runtime and never finishes by itself.

    TF_CONFIG=... python -m paraserve.components.train.server

Which task it is, and at which address, stands in TF_CONFIG, so that any launcher can start one. Beside TensorFlow's server a
worker runs its agent (cluster/agent.py), at the port that is 1000 above the worker's own; a launcher leaves that one free, and
open to the coordinator. The agent keeps its files in the folder for temporary files (TMPDIR), and reads object stores with the
credentials of this process's environment.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, WORKER, agent, tf_config


def serve(folder: Path) -> None:
    """Starts the server of this process's TF_CONFIG and waits for ever; a worker's agent keeps its files in `folder`.

    Raises ValueError for a bad TF_CONFIG, tf.errors.OpError or RuntimeError where a port is taken.
    """
    task = tf_config.from_environment()
    # Without it a call to a task that is gone waits for it to come back.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    if task.job == PARAMETER_SERVER:
        # oneDNN's own allocator gives nothing back: each doubling of a key index would keep the old one.
        os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    # The agent first: a worker is known to be ready by TensorFlow's server.
    with agent.serving(task.address, folder) if task.job == WORKER else contextlib.nullcontext():
        # A server needs only itself in its definition; it learns of the others when the coordinator connects.
        itself = tf.train.ClusterSpec({task.job: {task.index: task.address}})
        server = tf.distribute.Server(itself, job_name=task.job, task_index=task.index, protocol="grpc")
        print(f"{task.job} {task.index} serves at {task.address}", flush=True)
        server.join()


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory(prefix="paraserve-agent-") as folder:
            serve(Path(folder))
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
