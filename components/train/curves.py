"""AUC from counts in fixed bins: what workers can add up without sending their predictions."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

BINS = 8192
_RANGE = 10.0
"""Logits beyond this fall into the outer bins."""


def bin_counts(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Counts negatives (row 0) and positives (row 1) by logit: int64 [2, BINS] from float32 [n] each."""
    # What is no number goes into the lowest bin: the loss says so, a bin outside the range would only crash.
    position = tf.where(tf.math.is_nan(logits), 0.0, (logits + _RANGE) * (BINS / (2 * _RANGE)))
    bins = tf.cast(tf.clip_by_value(position, 0, BINS - 1), tf.int32)
    joint = bins + BINS * tf.cast(labels > 0.5, tf.int32)
    return tf.reshape(tf.math.bincount(joint, minlength=2 * BINS, maxlength=2 * BINS, dtype=tf.int64), [2, BINS])


def auc(counts: npt.NDArray[np.int64]) -> float:
    """Area under the ROC curve from `bin_counts`, pairs within a bin counting half; 0.5 where a class is absent."""
    negatives, positives = counts[0].astype(np.float64), counts[1].astype(np.float64)
    pairs = negatives.sum() * positives.sum()
    if not pairs:
        return 0.5
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + 0.5 * negatives)).sum() / pairs)
