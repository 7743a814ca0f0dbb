"""`paraserve compile`: the pipeline, and each component of its own, as the YAML that Kubeflow takes.

Choose the images (see components.images) by environment before this is imported: they stand in the components' decorators.
"""

from pathlib import Path

from kfp import compiler

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
