"""Every model over specs that lack a kind of column."""

from typing import Any

import pytest
import tensorflow as tf

from paraserve.components.features.spec import parse_spec
from paraserve.components.train.config import EQUAL_DIMENSION_MODELS, MODELS, TrainConfig, check_model_fits
from paraserve.components.train.models import model_builder

LABEL = {"column": "click", "positive_at_least": 1}
ONE = {"user": {"dimension": 4, "rows": 8}}
TWO = {**ONE, "item": {"dimension": 4, "rows": 8}}


def logits(model: str, spec: dict[str, Any]) -> tf.Tensor:
    parsed = parse_spec({"label": LABEL, **spec})
    built = model_builder(model)(parsed, TrainConfig(shards="s", snapshots="p", model=model, hidden_units="8,4"))
    inputs = {"dense": tf.ones([5, len(parsed.dense)]), **{c.name: tf.ones([5, c.dimension]) for c in parsed.embedded}}
    if getattr(built, "linear_weights", False):
        inputs["linear"] = tf.ones([5, len(parsed.embedded)])
    return built(inputs, training=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dense", [{}, {"price": {}}, {"price": {}, "age": {}}])
@pytest.mark.parametrize("categorical", [ONE, TWO])
def test_any_columns(model: str, dense: dict[str, Any], categorical: dict[str, Any]) -> None:
    spec = {"dense": dense, "categorical": categorical}
    if model == "dlrm" and spec == {"dense": {}, "categorical": ONE}:
        with pytest.raises(ValueError, match=r"'dlrm' multiplies pairs, and the spec has \{'user': 4\} alone; add a column"):
            check_model_fits(model, parse_spec({"label": LABEL, **spec}))
    else:
        check_model_fits(model, parse_spec({"label": LABEL, **spec}))
        assert logits(model, spec).shape == (5, 1)


@pytest.mark.parametrize("model", sorted(set(MODELS) - set(EQUAL_DIMENSION_MODELS)))
def test_numbers_alone(model: str) -> None:
    assert logits(model, {"dense": {"price": {}, "age": {}}}).shape == (5, 1)
