"""Real SavedModels of planted tables: what they answer, hold and lose, and what the check of them finds."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from paraserve.components.deploy.servable import Servable
from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY, RAW_SIGNATURE, read_description
from paraserve.components.features.graph import transform_dense
from paraserve.components.features.keys import MISSING, PADDING, key_of
from paraserve.components.features.spec import parse_spec
from paraserve.components.manifest import Manifest, read_manifest, read_raw_sample
from paraserve.components.records import Block, read_shard
from paraserve.components.train import curves
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.layout import GroupLayout, model_inputs
from paraserve.components.train.embedding.reserved import own_key
from paraserve.components.train.export import Exported, check_budget, export
from paraserve.components.train.export_check import largest_difference
from paraserve.components.train.export_report import report

DIMENSION = 8
WIDTH = DIMENSION + 1
STATIC_ROWS = 16
DYNAMIC_SPEC = {
    "label": {"column": "click", "positive_at_least": 1},
    "dense": {"price": {"transforms": ["log1p", "standardise"]}},
    "categorical": {"user": {"dimension": 8, "max_keys": 100}, "item": {"dimension": 8, "max_keys": 100}},
    "lists": {
        "tags": {"dimension": 8, "rows": STATIC_ROWS, "max_length": 4},
        "history": {"dimension": 8, "max_keys": 100, "table": "item", "pooling": "sum", "max_length": 3},
    },
}
"""The packed data set's columns, in dynamic tables but for one."""


class Product(tf_keras.Model):
    """User times item, a little of both lists, the linear weights, and a dense layer."""

    linear_weights = True

    def __init__(self) -> None:
        super().__init__()
        self.price = tf_keras.layers.Dense(1, kernel_initializer=tf_keras.initializers.Constant(0.1))

    def call(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        interaction = inputs["user"] * inputs["item"] + 0.05 * inputs["tags"] + 0.02 * inputs["history"]
        linear = tf.reduce_sum(inputs["linear"], axis=1, keepdims=True)
        return tf.reduce_sum(interaction, axis=1, keepdims=True) + linear + self.price(inputs["dense"])


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a training came to."""

    config: TrainConfig
    manifest: Manifest
    layouts: Sequence[GroupLayout]
    tables: Sequence[StaticContents | TableContents]
    model: Product
    linear: bool = True

    def contents(self) -> Sequence[StaticContents | TableContents]:
        return self.tables

    def local_model(self) -> Product:
        return self.model

    def set(self, **settings: Any) -> "Training":
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **settings))

    def with_rows(self, change: Callable[[np.ndarray], np.ndarray]) -> "Training":
        """With other rows in the dynamic tables."""
        static, dynamic = self.tables
        read = dynamic.read
        return dataclasses.replace(self, tables=(static, dataclasses.replace(dynamic, read=lambda p: change(read(p)))))

    @property
    def eval_block(self) -> Block:
        """The eval split's first shard."""
        shard = self.manifest.splits["eval"].shards[0]
        return read_shard(Path(self.config.shards) / shard.file, self.manifest.layout)

    @property
    def keys(self) -> int:
        return self.tables[1].rows


def planted_rows(numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows whose product is positive for numbers of one parity, as the packed data's clicks are, and a small linear weight."""
    sign = np.where(numbers % 2 == 0, 1, -1)[:, None]
    rows = sign * 0.5 + 0.1 * rng.normal(size=(len(numbers), WIDTH))
    rows[:, -1] = 0.02 * rng.normal(size=len(numbers))
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def trained(packed: Path) -> Training:
    """20 users and 26 of 30 items, those of lower numbers seen more often."""
    rng = np.random.default_rng(5)
    users, items = np.arange(20), np.arange(26)
    rows = np.concatenate([planted_rows(users, rng), planted_rows(items, rng), planted_rows(np.zeros(2, np.int64), rng)])
    keys = [key_of("user", str(u)) for u in users] + [key_of("item", str(i)) for i in items]
    keys += [own_key(table, MISSING) for table in ("user", "item")]
    static = (0.1 * rng.normal(size=(STATIC_ROWS, WIDTH))).astype(np.float32)
    dynamic = TableContents(
        name="embedding-8-dynamic",
        width=WIDTH,
        tables=("user", "item"),
        keys=np.array(keys),
        table=np.array([0] * 20 + [1] * 26 + [0, 1], np.int32),
        frequency=np.array([*(200 - users), *(100 - items), 0, 0]),
        defaults=0.1 * rng.normal(size=(2, WIDTH)).astype(np.float32),
        read=lambda positions: rows[positions],
    )
    spec = parse_spec(DYNAMIC_SPEC)
    model = Product()
    model(model_inputs(spec, tf.zeros([1, 1]), {c.name: tf.zeros([1, WIDTH]) for c in spec.embedded}, linear=True))
    return Training(
        config=TrainConfig(shards=str(packed), snapshots="unused"),
        manifest=dataclasses.replace(read_manifest(str(packed)), spec=spec),
        layouts=GroupLayout.all_of(spec, linear=True),
        tables=(
            StaticContents(name="embedding-8", width=WIDTH, rows=STATIC_ROWS, read=lambda positions: static[positions]),
            dynamic,
        ),
        model=model,
    )


def half_of_the_keys(trained: Training, row_bytes: int = 4 * WIDTH) -> int:
    """A limit for it."""
    return 8 + (STATIC_ROWS + 2) * row_bytes + trained.keys // 2 * (8 + row_bytes)


def expected(trained: Training, block: Block, kept: Sequence[int] | None = None) -> np.ndarray:
    """Probabilities by dictionaries and the model itself; keys at positions that are not kept have the default."""
    static, dynamic = trained.tables
    positions = range(dynamic.rows) if kept is None else kept
    rows = {int(dynamic.keys[i]): dynamic.read(np.array([i]))[0] for i in positions}

    def row(column: str, key: int) -> np.ndarray:
        if column == "tags":
            return static.read(np.array([key % STATIC_ROWS]))[0]
        table = 0 if column == "user" else 1
        return rows.get(own_key(dynamic.tables[table], key) if key == MISSING else key, dynamic.defaults[table])

    spec, ids = trained.manifest.spec, block.id_matrix(trained.manifest.layout)
    columns = {}
    for column in spec.embedded:
        keys = [[key for key in example[spec.id_slices[column.name]] if key != PADDING] for example in ids]
        sums = [sum((row(column.name, int(key)) for key in example), np.zeros(WIDTH, np.float32)) for example in keys]
        lengths = [max(len(example), 1) if column.name == "tags" else 1 for example in keys]
        columns[column.name] = tf.constant(np.array(sums) / np.array(lengths)[:, None], tf.float32)
    price = transform_dense(spec, trained.manifest.moments, tf.constant(block.dense))
    logits = trained.model(model_inputs(spec, price, columns, linear=True))
    probabilities: np.ndarray = tf.sigmoid(logits[:, 0]).numpy()
    return probabilities


def answers(exported: Exported, trained: Training, block: Block) -> np.ndarray:
    """Of the SavedModel, as any TensorFlow program loads it."""
    loaded = tf.saved_model.load(str(exported.folder))
    inputs = {IDS: tf.constant(block.id_matrix(trained.manifest.layout)), DENSE: tf.constant(block.dense)}
    probabilities: np.ndarray = loaded.signatures[MATRIX_SIGNATURE](**inputs)[PROBABILITY].numpy()
    return probabilities


def stored_bytes(exported: Exported) -> int:
    """Of all variables in the SavedModel's files."""
    reader = tf.train.load_checkpoint(str(exported.folder / "variables" / "variables"))
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return sum(int(np.prod(shape)) * dtypes[n].size for n, shape in shapes.items() if dtypes[n] != tf.string)


def difference(exported: Exported, trained: Training, predicted: np.ndarray | None = None) -> float:
    """What the check finds, over 200 raw rows; the trainer answers as the dictionaries do, unless `predicted` is given."""
    rows = read_raw_sample(trained.config.shards, trained.manifest)
    block = trained.eval_block.rows(0, len(rows))
    return largest_difference(exported, trained, rows, block, expected(trained, block) if predicted is None else predicted)


def auc(trained: Training, probabilities: Callable[[Block], np.ndarray]) -> float:
    """Of the eval split."""
    counts = 0
    for shard in trained.manifest.splits["eval"].shards:
        block = read_shard(Path(trained.config.shards) / shard.file, trained.manifest.layout)
        p = probabilities(block).astype(np.float64)
        counts += curves.bin_counts(tf.constant(np.log(p / (1 - p)), tf.float32), tf.constant(block.labels)).numpy()
    return curves.auc(counts)


@pytest.fixture(scope="module")
def whole(trained: Training, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(trained, tmp_path_factory.mktemp("whole") / "1", "run")


@pytest.fixture(scope="module")
def half(trained: Training, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """With half of the keys."""
    limited = trained.set(serving_max_bytes=half_of_the_keys(trained))
    return export(limited, tmp_path_factory.mktemp("half") / "1", "run")


def test_all_rows_in_float32_answer_as_the_tables_do(trained: Training, whole: Exported) -> None:
    block = trained.eval_block
    np.testing.assert_allclose(answers(whole, trained, block), expected(trained, block), atol=1e-6)
    assert whole.whole
    assert whole.bytes == stored_bytes(whole) == 8 + (STATIC_ROWS + 2 + trained.keys) * 4 * WIDTH + trained.keys * 8
    description = read_description(str(whole.folder))
    assert description.spec == trained.manifest.spec
    assert description.training["serving_dtype"] == "float32"
    assert [path.name for path in whole.folder.parent.iterdir()] == ["1"]


def test_half_of_the_keys_the_most_frequent_and_defaults_for_the_rest(trained: Training, half: Exported) -> None:
    assert half.bytes == stored_bytes(half) == half_of_the_keys(trained)
    kept = np.sort(half.rows[1].kept)
    assert kept.tolist() == [*range(20), *range(20, 24)], "all users, seen 181 times and more, and four items"
    block = trained.eval_block
    np.testing.assert_allclose(answers(half, trained, block), expected(trained, block, kept), atol=1e-6)
    assert np.abs(expected(trained, block, kept) - expected(trained, block)).max() > 0.1
    assert difference(half, trained) < 1e-6


def test_dropped_and_unknown_ids_get_the_same_default_in_a_server(trained: Training, tmp_path: Path) -> None:
    limit = half_of_the_keys(trained, row_bytes=16)
    export(trained.set(serving_max_bytes=limit, serving_dtype="int8"), tmp_path / "1", "run")

    signature = Servable(tmp_path / "1").signature(RAW_SIGNATURE)
    row = {"price": "12", "user": "4", "tags": "1|2", "history": ""}
    inputs = {name: np.array([value] * 4, object) for name, value in row.items()}
    given = signature({**inputs, "item": np.array(["0", "25", "never seen", "nor this"], object)})[PROBABILITY]

    assert given[0] > given[1] + 0.1
    np.testing.assert_allclose(given[2:], given[1], atol=1e-6)


@pytest.mark.parametrize(("dtype", "row_bytes", "most"), [("bfloat16", 18, 0.01), ("int8", 16, 0.01)])
def test_smaller_rows(trained: Training, tmp_path: Path, dtype: str, row_bytes: int, most: float) -> None:
    exported = export(trained.set(serving_dtype=dtype), tmp_path / "1", "run")

    error = np.abs(answers(exported, trained, trained.eval_block) - expected(trained, trained.eval_block)).max()
    assert 1e-5 < error < most
    assert exported.bytes == stored_bytes(exported) == 8 + (STATIC_ROWS + 2 + trained.keys) * row_bytes + trained.keys * 8


def test_int8_does_not_touch_linear_weights(trained: Training, tmp_path: Path) -> None:
    """Weights as large as these would leave nothing of their rows, or be rounded to steps of 0.1, at one scale for both."""

    def with_large_weights(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([0.01 * rows[:, :-1], np.sign(rows[:, :1]) * 2.123], axis=1)

    large = trained.with_rows(with_large_weights)
    exported = export(large.set(serving_dtype="int8"), tmp_path / "1", "run")

    np.testing.assert_allclose(answers(exported, large, large.eval_block), expected(large, large.eval_block), atol=1e-3)


@pytest.mark.parametrize(("limited", "dtype"), [(False, "float32"), (True, "int8")])
def test_the_check_passes_whatever_was_left_out_and_finds_what_is_wrong(
    trained: Training, tmp_path: Path, limited: bool, dtype: str
) -> None:
    limit = half_of_the_keys(trained, row_bytes=16) if limited else 0
    trained = trained.set(serving_max_bytes=limit, serving_dtype=dtype)
    exported = export(trained, tmp_path / "1", "run")
    rows = read_raw_sample(trained.config.shards, trained.manifest)
    block = trained.eval_block.rows(0, len(rows))
    right = expected(trained, block)

    assert difference(exported, trained) < 1e-6
    otherwise = export(trained.with_rows(lambda rows: rows + np.float32(0.01)), tmp_path / "2", "run")
    assert difference(dataclasses.replace(exported, folder=otherwise.folder), trained, right) > 1e-3, "tables"
    assert difference(exported, trained, np.roll(right, 1)) > 1e-2, "the trainer"
    hashed_otherwise = [{**row, "user": row["user"] + "x"} for row in rows]
    assert largest_difference(exported, trained, hashed_otherwise, block, right) > 1e-2, "hashing"


def test_the_check_compares_no_keys_that_have_no_row_with_the_trainer(trained: Training, whole: Exported) -> None:
    block = trained.eval_block.rows(0, 200)
    predicted = expected(trained, block)
    items = block.id_matrix(trained.manifest.layout)[:, [1, -3, -2, -1]]
    unknown = np.isin(items, [key_of("item", str(i)) for i in range(26, 30)]).any(axis=1)
    assert 0 < unknown.sum() < 200

    predicted[unknown] += 0.5
    assert difference(whole, trained, predicted) < 1e-6
    predicted[~unknown] += 0.5
    assert difference(whole, trained, predicted) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 0.0), ("bfloat16", 0.02)])
def test_a_trainer_that_computes_in_16_bits_may_be_off_by_them(
    trained: Training, whole: Exported, dtype: str, allowed: float
) -> None:
    predicted = expected(trained, trained.eval_block.rows(0, 200))
    trained = trained.set(compute_dtype=dtype)

    assert difference(whole, trained, predicted + 0.01) == pytest.approx(max(0.01 - allowed, 0), abs=1e-6)
    assert difference(whole, trained, predicted + 0.5) == pytest.approx(0.5 - allowed, abs=1e-6)


def test_the_report_of_a_whole_export(trained: Training, whole: Exported) -> None:
    by_trainer = auc(trained, lambda block: expected(trained, block))

    said = report(whole, trained, by_trainer)

    assert said.rows == said.rows_kept == STATIC_ROWS + trained.keys
    assert said.bytes == whole.bytes
    assert said.coverage == {"user": 1.0, "item": 1.0}
    assert said.auc > 0.85
    assert said.auc_lost == pytest.approx(0, abs=1e-4)
    assert 0 < said.log_loss < 0.7


def test_the_report_says_what_half_of_the_keys_cost(trained: Training, half: Exported) -> None:
    by_trainer = auc(trained, lambda block: expected(trained, block))

    said = report(half, trained, by_trainer)

    assert (said.rows, said.rows_kept) == (STATIC_ROWS + trained.keys, STATIC_ROWS + trained.keys // 2)
    frequency = trained.tables[1].frequency
    assert said.coverage == {"user": 1.0, "item": pytest.approx(frequency[20:24].sum() / frequency[20:46].sum())}
    lost = by_trainer - auc(trained, lambda block: expected(trained, block, half.rows[1].kept))
    assert said.auc_lost == pytest.approx(lost, abs=1e-4)
    assert said.auc_lost > 0.1


def test_a_limit_below_what_must_be_held_is_refused_before_training(trained: Training) -> None:
    check_budget(trained.set(serving_max_bytes=8 + (STATIC_ROWS + 2) * 4 * WIDTH))

    with pytest.raises(ValueError, match=r"`serving_max_bytes` is 500, .* alone take 656 as float32: raise it"):
        check_budget(trained.set(serving_max_bytes=500))
