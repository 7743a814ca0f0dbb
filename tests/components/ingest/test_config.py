"""The settings' checks, and that the component's parameters are these settings."""

import dataclasses
import inspect
from typing import Any

import pytest

from paraserve.components.ingest.component import ingest
from paraserve.components.ingest.config import IngestConfig

PLACES: dict[str, Any] = {"data": "d", "feature_spec": "s", "shards": "o"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": " "}, "`data` is ' '; give a path"),
        ({"shards": ""}, "`shards` is ''"),
        ({"split": "hash"}, "`split` is 'hash'; give one of random, time"),
        ({"delimiter": "::"}, "`delimiter` is '::'; give auto, comma, tab, or one ASCII character"),
        ({"delimiter": '"'}, "`delimiter`"),
        ({"delimiter": "¦"}, "`delimiter`"),
        ({"column_names": "a,b,a"}, "`column_names` is 'a,b,a'; give names that are not empty and stand once each"),
        ({"column_names": "a,,b"}, "`column_names`"),
        ({"eval_fraction": 0.0}, r"`eval_fraction` is 0\.0; give a share above 0 and below 1"),
        ({"test_fraction": 1.0}, "`test_fraction`"),
        ({"test_fraction": float("nan")}, "`test_fraction`"),
        ({"eval_fraction": 0.5, "test_fraction": 0.5}, r"`eval_fraction \+ test_fraction` is 1\.0"),
        ({"split_seed": -1}, "`split_seed` is -1"),
        ({"shard_rows": 0}, "`shard_rows` is 0"),
        ({"max_bad_fraction": 1.1}, r"`max_bad_fraction` is 1\.1; give a share from 0 to 1"),
        ({"raw_sample_rows": -1}, "`raw_sample_rows` is -1; give 0 or more"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IngestConfig(**{**PLACES, **settings})


def test_names_are_stripped() -> None:
    assert IngestConfig(**PLACES, column_names=" a, b ").names == ("a", "b")
    assert IngestConfig(**PLACES).names == ()


def test_the_component_takes_what_the_config_holds() -> None:
    parameters = inspect.signature(ingest.python_func).parameters
    fields = {f.name: f.default for f in dataclasses.fields(IngestConfig)}
    taken = {n: p.default for n, p in parameters.items() if n not in ("run_folder", "manifest", "statistics")}
    assert set(taken) == set(fields)
    assert {n: d for n, d in taken.items() if d is not inspect.Parameter.empty} == {
        n: d for n, d in fields.items() if d is not dataclasses.MISSING
    }
