"""The compiled YAML in pipelines/compiled/ is what the code compiles to now."""

from pathlib import Path

import pytest
import yaml
from kfp import components

from paraserve.pipelines.compile import COMPONENTS, compile_components, compile_pipeline

COMPILED = Path(__file__).parents[2] / "pipelines" / "compiled"


def documents(path: Path) -> list[object]:
    """The header comment is left out: kfp writes its lines in another order now and then."""
    return list(yaml.safe_load_all(path.read_text()))


def test_the_committed_pipeline_is_current(tmp_path: Path) -> None:
    out = tmp_path / "train_to_serve.yaml"
    compile_pipeline(out)
    assert documents(out) == documents(COMPILED / "train_to_serve.yaml"), "run `make compile`"


def test_the_committed_components_are_current(tmp_path: Path) -> None:
    for path in compile_components(tmp_path):
        assert documents(path) == documents(COMPILED / "components" / path.name), "run `make compile`"
    assert {p.stem for p in (COMPILED / "components").iterdir()} == set(COMPONENTS)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_compiled_component_can_be_used_in_another_pipeline(name: str) -> None:
    loaded = components.load_component_from_file(str(COMPILED / "components" / f"{name}.yaml"))
    assert set(loaded.component_spec.inputs or ()) == set(COMPONENTS[name].component_spec.inputs or ())


def test_every_task_has_the_runs_id_a_time_limit_and_no_cache() -> None:
    pipeline, platform = documents(COMPILED / "train_to_serve.yaml")
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]  # type: ignore[index]
    assert set(executors) == {f"exec-{name}" for name in COMPONENTS}
    for settings in executors.values():
        assert int(settings["activeDeadlineSeconds"]) > 0
        field = {"name": "PARASERVE_RUN_ID", "fieldPath": "metadata.labels['pipeline/runid']"}
        assert settings["fieldPathAsEnv"] == [field]
    dags = [pipeline["root"]["dag"], *(c["dag"] for c in pipeline["components"].values() if "dag" in c)]  # type: ignore[index]
    tasks = [task for dag in dags for task in dag["tasks"].values() if task["taskInfo"]["name"] not in ("Steps", "Promote")]
    assert len(tasks) == len(COMPONENTS)
    assert not any(task["cachingOptions"].get("enableCache") for task in tasks)


def test_the_parameters_stand_in_the_yaml_with_descriptions() -> None:
    pipeline = documents(COMPILED / "train_to_serve.yaml")[0]
    inputs = pipeline["root"]["inputDefinitions"]["parameters"]  # type: ignore[index]
    assert inputs["epochs"]["defaultValue"] == 5
    assert all(definition["description"] for definition in inputs.values())
