"""`paraserve compile`: the pipeline, and each component of its own, as the YAML that Kubeflow takes.

Choose the images (see components.images) by environment before this is imported: they stand in the components' decorators.
"""

import re
from pathlib import Path

from kfp import compiler

from paraserve.components import images
from paraserve.components.deploy.component import deploy
from paraserve.components.evaluate.component import evaluate
from paraserve.components.finish.component import finish
from paraserve.components.ingest.component import ingest
from paraserve.components.register.component import register
from paraserve.components.train.component import train
from paraserve.pipelines.train_to_serve import train_to_serve

COMPONENTS = {
    "ingest": ingest,
    "train": train,
    "evaluate": evaluate,
    "register": register,
    "deploy": deploy,
    "finish": finish,
}


_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"
_REFERENCE = re.compile(rf"(?:{_HOST}(?:\.{_HOST})*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}")
"""HOST:PORT/PATH:TAG. Source: https://github.com/distribution/reference/blob/main/reference.go, without digests and IPv6."""


def check_images() -> None:
    """Raises ValueError when the images' names, as the environment makes them, are none that a cluster could pull."""
    for image in (images.LIGHT, images.TENSORFLOW):
        if not _REFERENCE.fullmatch(image):
            raise ValueError(
                f"'{image}' is no image reference; give --image-registry HOST[:PORT]/PATH, in small letters and "
                "without https://, and an --image-tag of letters, digits, _, . and -"
            )


def compile_pipeline(out: Path) -> None:
    """Writes the pipeline to `out`, a .yaml file; folders above it are made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(train_to_serve, str(out))


def compile_components(folder: Path) -> list[Path]:
    """Writes NAME.yaml for each component, for `kfp.components.load_component_from_file` in others' pipelines."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.yaml" for name in COMPONENTS]
    for path, component in zip(paths, COMPONENTS.values(), strict=True):
        compiler.Compiler().compile(component, str(path))
    return paths
