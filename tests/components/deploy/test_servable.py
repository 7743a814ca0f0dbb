"""Loading a version, with its warm-up."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def model(models: Path, tmp_path: Path) -> Path:
    shutil.copytree(models / "good" / "1", tmp_path / "1")
    return tmp_path / "1"


def test_warm_up_requests_are_run_before_it_serves(model: Path, warmup_writer: Callable[[Path, dict[str, str]], None]) -> None:
    """A request that the model refuses shows that they are run."""
    from paraserve.components.deploy.servable import BadRequest, Servable

    warmup_writer(model, {"user_id": "1", "age": "old", "genres": ""})

    with pytest.raises(BadRequest, match="old"):
        Servable(model)


def test_a_damaged_warm_up_file_is_an_error(model: Path) -> None:
    import tensorflow as tf

    from paraserve.components.deploy.servable import Servable

    path = model / "assets.extra" / "tf_serving_warmup_requests"
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(tf.errors.DataLossError):
        Servable(model)
