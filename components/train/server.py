"""A worker or parameter server: a process that serves TensorFlow's runtime and never finishes by itself.

    TF_CONFIG=... python -m paraserve.components.train.server

Which task it is, and at which address, stands in TF_CONFIG, so that any launcher can start one.
"""

import os
import sys

import tensorflow as tf

from paraserve.components.train.cluster import tf_config


def serve() -> None:
    """Starts the server of this process's TF_CONFIG and waits for ever.

    Raises ValueError for a bad TF_CONFIG, tf.errors.OpError where the port is taken.
    """
    task = tf_config.from_environment()
    # Without it a call to a task that is gone waits for it to come back.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    # A server needs only itself in its definition; it learns of the others when the coordinator connects.
    itself = tf.train.ClusterSpec({task.job: {task.index: task.address}})
    server = tf.distribute.Server(itself, job_name=task.job, task_index=task.index, protocol="grpc")
    print(f"{task.job} {task.index} serves at {task.address}", flush=True)
    server.join()


if __name__ == "__main__":
    try:
        serve()
    except (ValueError, tf.errors.OpError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
