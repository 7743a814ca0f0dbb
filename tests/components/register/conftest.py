"""A registry on a path and on gs://, and small folders that look like a SavedModel."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from paraserve.components.register.registry import Registry

MakeModel = Callable[[str], Path]


@pytest.fixture(params=["path", "gs"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    if request.param == "path":
        return Registry(str(tmp_path / "registry"))
    return Registry(f"{request.getfixturevalue('bucket')}/registry")


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Makes a folder with the files of a SavedModel; the text decides its content."""

    def make(text: str) -> Path:
        folder = tmp_path / f"model-{uuid.uuid4().hex}"
        for name, content in {
            "saved_model.pb": f"graph {text}",
            "fingerprint.pb": uuid.uuid4().hex,
            "variables/variables.data-00000-of-00001": text,
            "variables/variables.index": "index",
            "assets.extra/paraserve.json": "{}",
        }.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return folder

    return make
