"""Learning-rate schedules. The rate is computed from the step that travels with each shard; no variable holds it, since a
variable read by every worker at every step is a hot spot on its server.
"""

import math

import tensorflow as tf

from paraserve.components.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: tf.Tensor, planned_steps: int) -> tf.Tensor:
    """The learning rate at `step`.

    Args:
        step: int64 scalar, steps done by all workers together.
        planned_steps: steps of the whole run; the decay's length where the config names none.

    Returns:
        float32 scalar.
    """
    warmup = float(config.warmup_steps)
    decay = float(config.decay_steps or max(planned_steps - config.warmup_steps, 1))
    now = tf.cast(step, tf.float32)
    after = tf.maximum(now - warmup, 0.0)
    factors = {
        "constant": tf.constant(1.0),
        "exponential": tf.pow(config.decay_rate, after / decay),
        # Loshchilov and Hutter, 2017, without restarts.
        "cosine": 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(after / decay, 1.0))),
    }
    rising = tf.minimum((now + 1.0) / warmup, 1.0) if warmup else tf.constant(1.0)
    return config.learning_rate * rising * factors[config.schedule]
