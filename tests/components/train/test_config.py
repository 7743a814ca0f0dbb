import dataclasses
import inspect
import re

import pytest

from paraserve.components.features.spec import parse_spec
from paraserve.components.train.component import train
from paraserve.components.train.config import TrainConfig, check_model_fits, check_schedule_lasts


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, "`epochs` is 0; give a whole number from 1 to 1000000"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"batch_size": 99_999_999}, "`batch_size` is 99999999; give a whole number from 1 to 1048576"),
        ({"workers": 500}, "`workers` is 500; give a whole number from 1 to 256"),
        ({"workers": 0}, "`workers` is 0"),
        ({"parameter_servers": -1}, "`parameter_servers` is -1"),
        ({"learning_rate": -0.1}, "`learning_rate` is -0.1"),
        ({"learning_rate": float("nan")}, "`learning_rate` is nan"),
        ({"l2": float("inf")}, "`l2` is inf"),
        ({"schedule": "linear"}, "`schedule` is 'linear'; use one of constant, exponential, cosine"),
        ({"optimizer": "adam"}, "`optimizer` is 'adam'; use one of adagrad, rowwise_adagrad, sgd, lazy_adam, ftrl"),
        ({"model": "deep_fm"}, "`model` is 'deep_fm'; use one of wide_deep, deepfm, dcn_v2, dlrm, or your own"),
        ({"decay_rate": 1.0}, "`decay_rate` is 1.0"),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
        ({"hidden_units": "64,x"}, "`hidden_units` is '64,x'; give whole numbers above 0, such as 256,128"),
        ({"hidden_units": ""}, "`hidden_units` is ''"),
        ({"hidden_units": "64,0"}, "`hidden_units` is '64,0'"),
        ({"dense_optimizer": "adam"}, "`dense_optimizer` is 'adam'; use one of '', adagrad"),
        ({"sharding": "modulo"}, "`sharding` is 'modulo'; use one of hash, range"),
        ({"partitioner": "max_size"}, "`partitioner` is 'max_size'; use one of fixed, min_size"),
        ({"exchange_steps": 0}, "`exchange_steps` is 0; give a whole number from 1 to 256"),
        ({"exchange_steps": 2.0}, "`exchange_steps` is 2.0"),
        ({"compute_dtype": "float16"}, "`compute_dtype` is 'float16'; use one of float32, bfloat16"),
        ({"pull_dtype": "int8"}, "`pull_dtype` is 'int8'; use one of float32, bfloat16, float16"),
        ({"push_dtype": "half"}, "`push_dtype` is 'half'"),
        ({"dense_compression": "top-k"}, "`dense_compression` is 'top-k'; use one of none, topk, auto"),
        ({"staleness_bound": -1}, "`staleness_bound` is -1; give a whole number from 0"),
        ({"staleness_bound": 3}, "`staleness_bound` is 3, below the 4 steps that one exchange holds (`exchange_steps`)"),
        ({"staleness_action": "wait"}, "`staleness_action` is 'wait'; use one of refuse, hold"),
        ({"staleness_action": "hold"}, "`staleness_action` is hold, but `staleness_bound` is 0, which sets no bound; give one"),
        (
            {"pull_dtype": "float16", "optimizer": "lazy_adam"},
            "`pull_dtype` is float16, in which the squares of small gradients are 0, and with `exchange_steps` 4 those of "
            "`optimizer` lazy_adam would travel; use bfloat16",
        ),
        ({"push_dtype": "float16", "dense_optimizer": "rowwise_adagrad"}, "`push_dtype` is float16"),
        ({"nonfinite": "ignore"}, "`nonfinite` is 'ignore'; use one of stop, drop"),
        ({"snapshot_shards": -1}, "`snapshot_shards` is -1"),
        ({"snapshot_seconds": float("inf")}, "`snapshot_seconds` is inf; give a finite number of at least 0"),
        ({"serving_max_bytes": -1}, "`serving_max_bytes` is -1"),
        ({"serving_dtype": "float16"}, "`serving_dtype` is 'float16'; use one of float32, bfloat16, int8"),
        ({"decay_steps": 5}, "`decay_steps` is 5 but `schedule` is constant; set it to 0, or choose a schedule"),
    ],
)
def test_refuses_settings_out_of_range(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        TrainConfig(shards="s", snapshots="p", **setting)  # type: ignore[arg-type]


def test_float16_is_allowed_where_no_square_travels() -> None:
    for settings in ({"optimizer": "lazy_adam", "exchange_steps": 1}, {"optimizer": "adagrad"}):
        TrainConfig(shards="s", snapshots="p", pull_dtype="float16", push_dtype="float16", **settings)  # type: ignore[arg-type]


def test_a_learning_rate_of_zero_is_allowed() -> None:
    assert TrainConfig(shards="s", snapshots="p", learning_rate=0.0).learning_rate == 0.0


def test_the_step_has_the_same_parameters_and_defaults() -> None:
    step = {
        name: parameter.default
        for name, parameter in inspect.signature(train.python_func).parameters.items()
        if name not in ("run_folder", "savedmodel", "logs", "metrics")
    }
    fields = {
        f.name: inspect.Parameter.empty if f.default is dataclasses.MISSING else f.default
        for f in dataclasses.fields(TrainConfig)
    }

    assert step == fields


def test_a_model_of_products_needs_one_dimension() -> None:
    unequal = parse_spec(
        {
            "label": {"column": "click", "positive_at_least": 1},
            "categorical": {"user": {"dimension": 8, "rows": 4}, "item": {"dimension": 16, "rows": 4}},
        }
    )

    for model in ("deepfm", "dlrm"):
        with pytest.raises(ValueError, match=rf"'{model}' .* the spec has \{{'user': 8, 'item': 16\}}: make them equal"):
            check_model_fits(model, unequal)
    check_model_fits("dcn_v2", unequal)
    check_model_fits("my.package:model", unequal)


def schedule(**settings: object) -> TrainConfig:
    return TrainConfig(shards="s", snapshots="p", schedule="cosine", **settings)  # type: ignore[arg-type]


def test_a_schedule_that_ends_long_before_the_steps_is_refused_with_what_would_last() -> None:
    with pytest.raises(ValueError, match=r"reaches 0 at step 60 of 100, .* `decay_steps` to 0 .* or to at least 90, or lower"):
        check_schedule_lasts(schedule(decay_steps=50, warmup_steps=10), 100)

    check_schedule_lasts(schedule(decay_steps=90, warmup_steps=10), 100)
    check_schedule_lasts(schedule(), 100)
    check_schedule_lasts(TrainConfig(shards="s", snapshots="p", schedule="exponential", decay_steps=5), 100)
