"""Writes docs/parameters.md from the pipeline. `make docs` calls it; a test holds the file current."""

import inspect
from pathlib import Path

from paraserve.pipelines.compile import COMPONENTS
from paraserve.pipelines.parameters import Parameter, parameters

OUT = Path(__file__).with_name("parameters.md")
HEAD = """\
# The pipeline's parameters

Written by `make docs` from `pipelines/train_to_serve.py`: change them there. Kubeflow's UI shows them as a form;
`paraserve run` takes them as `--set name=value` or as lines of a `--params` file, and puts the places below its `--workdir`
unless they are given.

| parameter | type | default | what it is | steps |
| --- | --- | --- | --- | --- |
"""


def render() -> str:
    """The whole page."""
    return HEAD + "".join(_row(parameter) for parameter in parameters().values())


def _row(parameter: Parameter) -> str:
    default = "required" if parameter.default is None else f"`{parameter.default!r}`"
    steps = [name for name, step in COMPONENTS.items() if parameter.name in _inputs(step)]
    return f"| `{parameter.name}` | {parameter.type.__name__} | {default} | {parameter.description} | {', '.join(steps)} |\n"


def _inputs(step: object) -> list[str]:
    """The parameters of a component, its artifacts left out (evaluate's `model` is one, train's is not)."""
    signature = inspect.signature(step.python_func)  # type: ignore[attr-defined]
    return [name for name, parameter in signature.parameters.items() if parameter.annotation in (str, int, float, bool)]


if __name__ == "__main__":
    OUT.write_text(render())
    print(OUT)
