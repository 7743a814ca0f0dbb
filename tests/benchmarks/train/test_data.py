"""The synthetic log: equal settings give equal bytes, the planted truth is in it, and tables of any kind read it."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.train.data import Log, Planted, bayes_auc, packed_log
from paraserve.components.manifest import SPLITS, Manifest, read_manifest
from paraserve.components.records import Block, read_shard

LOG = Log(rows=5000, held_out_rows=3000, columns=4, values=200, planted_values=50, dense=2, pairs=1, shard_rows=2000)


def _read(folder: Path, split: str) -> tuple[Block, Manifest]:
    manifest = read_manifest(str(folder))
    return Block.concatenate([read_shard(folder / s.file, manifest.layout) for s in manifest.splits[split].shards]), manifest


def test_equal_settings_give_equal_bytes(tmp_path: Path) -> None:
    first, second = (read_manifest(str(packed_log(tmp_path / name, LOG, 8, dynamic=False))) for name in ("a", "b"))
    assert first.splits == second.splits
    assert len({shard.sha256 for split in SPLITS for shard in first.splits[split].shards}) == 3 + 2 + 2


def test_the_bayes_auc_is_that_of_the_true_probabilities_and_no_linear_guess_reaches_it(tmp_path: Path) -> None:
    block, manifest = _read(packed_log(tmp_path, LOG, 8, dynamic=False), "test")
    planted = Planted.of(LOG)
    ranks = np.stack([_ranks(planted.keys[c], block.ids[:, c]) for c in range(LOG.columns)], axis=1)
    linear = sum(planted.weights[c, ranks[:, c]] for c in range(LOG.columns)) + block.dense @ planted.dense_weights
    bayes = bayes_auc(manifest, "test")
    assert 0.6 < roc_auc_score(block.labels, linear) < bayes < 0.95
    assert manifest.splits["test"].positives == block.labels.sum()


def test_a_key_modulo_the_values_is_its_row_without_collisions_and_the_first_rank_has_its_zipf_share(tmp_path: Path) -> None:
    block, _ = _read(packed_log(tmp_path, LOG, 8, dynamic=False), "train")
    keys = Planted.of(LOG).keys
    assert all(len(np.unique(column % LOG.values)) == LOG.values for column in keys)
    share = 1 / (np.arange(1, LOG.values + 1) ** -LOG.exponent).sum()
    assert (block.ids[:, 0] == keys[0, 0]).mean() == pytest.approx(share, rel=0.1)


def test_logs_with_other_tables_share_their_shards(tmp_path: Path) -> None:
    static, dynamic = packed_log(tmp_path, LOG, 8, dynamic=False), packed_log(tmp_path, LOG, 32, dynamic=True)
    assert static.joinpath("train-00000.records").samefile(dynamic / "train-00000.records")
    specs = [read_manifest(str(folder)).spec for folder in (static, dynamic)]
    assert [(s.tables["c00"].dimension, s.tables["c00"].rows) for s in specs] == [(8, 200), (32, 0)]


def test_present_keys_are_all_there_once(tmp_path: Path) -> None:
    log = Log(rows=100, held_out_rows=100, columns=4, values=200, dense=2, pairs=1, shard_rows=300, present_keys=4 * 1000)
    folder = packed_log(tmp_path, log, 8, dynamic=True)
    manifest = read_manifest(str(folder))
    files = sorted(folder.glob("present-*.records"))
    ids = np.concatenate([read_shard(path, manifest.layout).ids for path in files])
    assert len(files) == 4
    assert len(np.unique(ids)) == ids.size == log.present_keys
    assert np.isin(Planted.of(log).keys, ids).all()


def _ranks(keys: np.ndarray, ids: np.ndarray) -> np.ndarray:
    order = np.argsort(keys)
    return order[np.searchsorted(keys[order], ids)]
