import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from paraserve.components.deploy.config import DeployConfig, RolloutConfig, parse_steps
from paraserve.components.evaluate.config import EvaluateConfig, Thresholds, columns_of
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.train.config import TrainConfig
from paraserve.pipelines import parameters
from paraserve.pipelines.compile import COMPONENTS

PARSED = {"canary_steps": parse_steps, "slice_columns": columns_of}
SCALARS = (str, int, float, bool)


def component_defaults(name: str) -> dict[str, Any]:
    signature = inspect.signature(COMPONENTS[name].python_func)
    return {
        p.name: p.default
        for p in signature.parameters.values()
        if p.annotation in SCALARS and p.default is not inspect.Parameter.empty
    }


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_pipeline_has_each_components_defaults(name: str) -> None:
    pipeline = {p.name: p.default for p in parameters.parameters().values()}
    defaults = component_defaults(name)
    assert {n: pipeline.get(n) for n in defaults} == defaults


@pytest.mark.parametrize(
    ("name", "configs"),
    [
        ("ingest", [IngestConfig]),
        ("train", [TrainConfig]),
        ("evaluate", [EvaluateConfig, Thresholds]),
        ("deploy", [DeployConfig, RolloutConfig]),
    ],
)
def test_a_component_has_its_configs_defaults(name: str, configs: list[Any]) -> None:
    fields = {f.name: f.default for config in configs for f in dataclasses.fields(config)}
    for parameter, default in component_defaults(name).items():
        assert PARSED.get(parameter, lambda value: value)(default) == fields[parameter], parameter


def test_every_parameter_is_described() -> None:
    assert all(p.description.endswith(".") for p in parameters.parameters().values())


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("epochs", "3", 3),
        ("learning_rate", "1e-3", 0.001),
        ("learning_rate", 1, 1.0),
        ("quarantine_values", "yes", True),
        ("quarantine_values", False, False),
        ("hidden_units", 64, "64"),
        ("data", "a=b.csv", "a=b.csv"),
    ],
)
def test_values_take_the_parameters_type(name: str, given: object, value: object) -> None:
    parsed = parameters.parse_values({name: given})[name]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("epochs", "three", "parameter 'epochs' is 'three'; give a whole number"),
        ("epochs", 1.5, "give a whole number"),
        ("epochs", True, "give a whole number"),
        ("learning_rate", "nan", "give a finite number"),
        ("quarantine_values", "maybe", "give true or false"),
        ("hidden_units", [256, 128], "give a text"),
        ("epocs", 3, "there is no parameter 'epocs'; did you mean 'epochs'?"),
        ("zzz", 3, "docs/parameters.md list all"),
    ],
)
def test_bad_values_are_refused_with_the_remedy(name: str, given: object, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parameters.parse_values({name: given})
    assert said in str(raised.value)


def test_required_parameters_are_asked_for() -> None:
    with pytest.raises(ValueError, match="missing feature_spec; give --set feature_spec="):
        parameters.complete({"data": "x"})


def test_a_parameter_file_must_be_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("- epochs\n")
    with pytest.raises(ValueError, match="name: value"):
        parameters.read_file(path)
    path.write_text("epochs: [\n")
    with pytest.raises(ValueError, match="cannot read the parameters in"):
        parameters.read_file(path)


def test_a_parameter_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("epochs: 1\nseed: 2\nepochs: 3\n")
    with pytest.raises(ValueError, match="holds epochs more than once"):
        parameters.read_file(path)
