"""The demo's model against published figures: the mean over three seeds, on the test split of MovieLens-100k.

    python benchmarks/quality.py

Each seed draws another random 80/10/10 split and other initial weights; early stopping looks at the eval split alone. The
reference is logistic regression on the same data, label and split in RecBole's documentation of context-aware models
(https://recbole.io/hyperparameters/context/movielens-100k.html).
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "movielens"
SEEDS = (0, 1, 2)
PUBLISHED = {"auc": 0.7765, "logloss": 0.5620}
INGEST = ("shard_rows", "eval_fraction", "test_fraction")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)  # one seed, in a process of its own
    parser.add_argument("--epochs", type=int, help="epochs at most (default: those of the demo's second run)")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        print(json.dumps(_measure(arguments.seed, arguments.epochs)))
        return 0
    subprocess.run([sys.executable, EXAMPLE / "prepare.py", "--out", ROOT / ".cache" / "movielens"], check=True)
    return _report([_in_child(seed, arguments.epochs) for seed in SEEDS])


def _in_child(seed: int, epochs: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--seed", str(seed), *(["--epochs", str(epochs)] if epochs else [])]
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    figures: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return figures


def _measure(seed: int, epochs: int | None) -> dict[str, Any]:
    """Ingest, train and test with one seed; the test split's AUC and log loss."""
    from paraserve.components.evaluate.metrics import score
    from paraserve.components.evaluate.predict import predict_test_split
    from paraserve.components.exported import read_description
    from paraserve.components.ingest.config import IngestConfig
    from paraserve.components.ingest.job import ingest
    from paraserve.components.manifest import read_manifest
    from paraserve.components.run_folder import RUN_ID_VARIABLE
    from paraserve.components.train.config import TrainConfig
    from paraserve.components.train.job import train

    settings = yaml.safe_load((EXAMPLE / "params.yaml").read_text())
    os.environ[RUN_ID_VARIABLE] = f"quality-{seed}"
    with tempfile.TemporaryDirectory(prefix="paraserve-quality-") as name:
        folder = Path(name)
        ingest_settings = {k: settings[k] for k in INGEST if k in settings}
        data, spec = str(ROOT / settings["data"]), str(ROOT / settings["feature_spec"])
        ingest_config = IngestConfig(data=data, feature_spec=spec, shards=name, split_seed=seed, **ingest_settings)
        shards = ingest(ingest_config, str(folder / "report"))
        fields = TrainConfig.__dataclass_fields__
        train_settings = {k: v for k, v in settings.items() if k in fields} | {"seed": seed}
        if epochs:
            train_settings["epochs"] = epochs
        train_config = TrainConfig(shards=shards, snapshots=str(folder / "s"), **train_settings)
        model, manifest = folder / "model", read_manifest(shards)
        # A process of its own: the one that trained stays connected to servers that are gone.
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            result = pool.submit(train, train_config, model, folder / "logs").result()
        seen = predict_test_split(model, read_description(str(model)).spec, shards, manifest, ())
        scores = score(seen.labels, seen.probabilities)
    return {
        "seed": seed,
        "epochs": result.best_epoch,
        "auc": scores.auc,
        "logloss": scores.logloss,
        "examples": len(seen.labels),
    }


def _report(rows: list[dict[str, Any]]) -> int:
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in PUBLISHED}
    print(f"\n{'MovieLens-100k, test split':34}{'AUC':>9}{'log loss':>10}")
    for row in rows:
        print(f"{'seed {seed}, best epoch {epochs}'.format(**row):34}{row['auc']:9.4f}{row['logloss']:10.4f}")
    print(f"{'mean of three seeds':34}{mean['auc']:9.4f}{mean['logloss']:10.4f}")
    print(f"{'logistic regression, published':34}{PUBLISHED['auc']:9.4f}{PUBLISHED['logloss']:10.4f}")
    better = mean["auc"] > PUBLISHED["auc"] and mean["logloss"] < PUBLISHED["logloss"]
    print("better on both" if better else "NOT better on both")
    return 0 if better else 1


if __name__ == "__main__":
    sys.exit(main())
