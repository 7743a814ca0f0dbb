"""Schedules and AUC against their formulas."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from paraserve.components.train.config import TrainConfig
from paraserve.components.train.curves import auc, bin_counts
from paraserve.components.train.schedules import learning_rate


def rate(step: int, planned: int = 100, **settings: object) -> float:
    config = TrainConfig(shards="s", snapshots="p", learning_rate=2.0, **settings)  # type: ignore[arg-type]
    return float(learning_rate(config, tf.constant(step, tf.int64), planned))


def test_constant() -> None:
    assert rate(0) == rate(99) == 2.0


def test_warm_up_rises_to_the_full_rate_and_stays() -> None:
    assert [rate(step, warmup_steps=4) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_exponential_decays_by_its_factor_every_decay_steps() -> None:
    assert rate(10, schedule="exponential", decay_steps=10, decay_rate=0.5) == pytest.approx(1.0)
    assert rate(30, schedule="exponential", decay_steps=10, decay_rate=0.5) == pytest.approx(0.25)


def test_cosine_reaches_zero_after_the_planned_steps_and_not_before() -> None:
    assert rate(50, schedule="cosine") == pytest.approx(1.0)
    assert rate(99, schedule="cosine") > 0
    assert rate(100, schedule="cosine") == pytest.approx(0.0, abs=1e-6)
    assert rate(200, schedule="cosine") == pytest.approx(0.0, abs=1e-6)


def test_decay_begins_after_the_warm_up() -> None:
    assert rate(10, schedule="cosine", warmup_steps=10) == pytest.approx(2.0)
    assert rate(55, schedule="cosine", warmup_steps=10) == pytest.approx(1.0)


def test_auc_from_bins_is_close_to_the_exact_one() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(20_000) < 0.3).astype(np.float32)
    logits = (rng.normal(size=20_000) + labels).astype(np.float32)

    counts = bin_counts(tf.constant(logits), tf.constant(labels)).numpy()

    assert counts.sum() == 20_000
    assert auc(counts) == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)


def test_auc_takes_extreme_logits_and_one_class() -> None:
    counts = bin_counts(tf.constant([-1e30, 1e30, np.inf, np.nan]), tf.constant([0.0, 1.0, 1.0, 0.0])).numpy()
    assert auc(counts) == 1.0
    assert auc(bin_counts(tf.constant([0.1]), tf.constant([1.0])).numpy()) == 0.5
