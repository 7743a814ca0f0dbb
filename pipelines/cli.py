"""The command line: `paraserve run | compile | serve | models`.

Each command imports what it needs when it is called, so that help appears at once; nothing here imports TensorFlow.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paraserve.pipelines import parameters
from paraserve.pipelines.run import EXIT_FAILED, EXIT_USAGE, run
from paraserve.pipelines.workdir import Busy, Workdir

Handler = Callable[[argparse.Namespace], int]

_RUN = """example:
  paraserve run --set data='logs/*.csv' --set feature_spec=features.yaml --set epochs=3

exit codes: 0 promoted, 3 rejected by the gate, 4 rolled back, 1 failed, 2 wrong usage (nothing was started)"""
_COMPILE = """example:
  paraserve compile --components --image-registry registry.example.com/ml --image-tag 1.4
  then upload build/train_to_serve.yaml in Kubeflow's UI"""
_SERVE = """examples:
  paraserve serve status
  paraserve serve stop --workdir run"""
_MODELS = """examples:
  paraserve models list
  paraserve models show ranker v2 --registry gs://bucket/registry"""


def main(arguments: list[str] | None = None) -> int:
    """The console script `paraserve`; returns the exit code."""
    options = _parser().parse_args(arguments)
    handler: Handler = options.handler
    try:
        return handler(options)
    except (ValueError, Busy) as error:
        print(f"paraserve: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"paraserve: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paraserve",
        description="From a click log to a served model.",
        epilog="Each command has its own help with an example: paraserve run --help",
    )
    parser.add_argument("--version", action="version", version=f"paraserve {importlib.metadata.version('paraserve')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_compile(commands)
    _add_serve(commands)
    _add_models(commands)
    return parser


def _command(commands: Any, name: str, summary: str, examples: str, handler: Handler | None = None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if handler:
        parser.set_defaults(handler=handler)
    return parser


def _add_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        type=Path,
        default=Path("run"),
        help="the folder of the runs, new, empty or of earlier ones (run)",
    )


def _add_run(commands: Any) -> None:
    parser = _command(commands, "run", "Run the pipeline on this machine.", _RUN, _run)
    parser.add_argument("--params", metavar="FILE", type=Path, help="a YAML file of parameters, `name: value` lines")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a parameter; goes over the file's")
    _add_workdir(parser)
    parser.add_argument("--list", action=_ListParameters, nargs=0, help="print the parameters, and exit")


class _ListParameters(argparse.Action):
    """`paraserve run --list`: the parameters with defaults and descriptions."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for parameter in parameters.parameters().values():
            default = "required" if parameter.default is None else repr(parameter.default)
            print(f"{parameter.name} ({parameter.type.__name__}, {default})\n    {parameter.description}")
        parser.exit()


def _run(options: argparse.Namespace) -> int:
    workdir = Workdir(options.workdir.absolute())
    arguments = _arguments(options, workdir)
    try:
        return run(workdir, arguments)
    except ValueError as error:  # the parameters were good, so this is no wrong usage
        print(f"paraserve: the run failed outside its steps: {error}", file=sys.stderr)
        return EXIT_FAILED


def _arguments(options: argparse.Namespace, workdir: Workdir) -> dict[str, Any]:
    """All parameters of the run, checked. Raises ValueError."""
    from paraserve.pipelines.checks import check

    workdir.check()
    given = parameters.read_file(options.params) if options.params else {}
    values = parameters.parse_values({**given, **parameters.read_settings(options.set)})
    arguments = workdir.absolute_places(parameters.complete({**workdir.places, **values}))
    check(arguments)
    return arguments


def _add_compile(commands: Any) -> None:
    parser = _command(commands, "compile", "Write the pipeline as YAML for Kubeflow.", _COMPILE, _compile)
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path("build/train_to_serve.yaml"), help="(%(default)s)")
    parser.add_argument("--components", action="store_true", help="also each component, into components/ beside FILE")
    parser.add_argument("--image-registry", metavar="R", help="where the images are, such as registry.example.com/ml")
    parser.add_argument("--image-tag", metavar="T", help="the images' tag")


def _compile(options: argparse.Namespace) -> int:
    if options.out.suffix != ".yaml":
        raise ValueError(f"--out is {options.out}; give a file name that ends in .yaml")
    for name in ("image_registry", "image_tag"):
        if getattr(options, name) is not None:
            os.environ[f"PARASERVE_{name.upper()}"] = getattr(options, name)
    from paraserve.pipelines.compile import check_images, compile_components, compile_pipeline

    check_images()
    try:
        compile_pipeline(options.out)
        components = compile_components(options.out.parent / "components") if options.components else []
    except OSError as error:
        raise ValueError(f"cannot write --out {options.out}: {error}; give another file") from error
    print("\n".join(map(str, [options.out, *components])))
    return 0


def _add_serve(commands: Any) -> None:
    serve = _command(commands, "serve", "Look after the endpoint on this machine.", _SERVE)
    actions = serve.add_subparsers(metavar="ACTION", required=True)
    for name, summary, handler in (
        ("status", "What is served, where, and by which processes; exit code 1 when nothing is.", _status),
        ("stop", "Stop the endpoint.", _stop),
    ):
        parser = _command(actions, name, summary, _SERVE, handler)
        _add_workdir(parser)
        if name == "status":
            parser.add_argument("--json", action="store_true", help="print JSON")


def _status(options: argparse.Namespace) -> int:
    from paraserve.components.deploy import local
    from paraserve.pipelines.endpoint import status_text

    status = local.status(_serving(options))
    print(json.dumps(status, indent=1) if options.json else status_text(status))
    return 0 if status["serving"] else EXIT_FAILED


def _stop(options: argparse.Namespace) -> int:
    from paraserve.components.deploy import local

    serving = _serving(options)
    local.stop(serving)
    print(f"nothing is served from {serving} now")
    return 0


def _serving(options: argparse.Namespace) -> str:
    return Workdir(options.workdir.absolute()).places["serving"]


def _add_models(commands: Any) -> None:
    models = _command(commands, "models", "Look into the registry.", _MODELS)
    actions = models.add_subparsers(metavar="ACTION", required=True)
    for name, summary, handler in (
        ("list", "List the versions of all models.", _list_models),
        ("show", "Show a model's versions and history, or a version's model card.", _show_model),
    ):
        parser = _command(actions, name, summary, _MODELS, handler)
        if name == "show":
            parser.add_argument("name", metavar="NAME", nargs="?", help="the model; may be left out when there is one only")
            parser.add_argument("version", metavar="VERSION", nargs="?", help="a version, such as v2")
        parser.add_argument("--registry", metavar="PLACE", help="a path or gs:// address; DIR/registry if not given")
        parser.add_argument("--json", action="store_true", help="print JSON")
        _add_workdir(parser)


def _list_models(options: argparse.Namespace) -> int:
    from paraserve.pipelines import models

    rows = models.list_models(_registry(options))
    print(json.dumps(rows, indent=1) if options.json else models.list_text(rows))
    return 0


def _show_model(options: argparse.Namespace) -> int:
    from paraserve.pipelines import models

    registry = _registry(options)
    name = options.name or models.only_name(registry)
    if options.version:
        card = registry.card(name, options.version)
        print(json.dumps(card, indent=1) if options.json else models.version_text(card))
    else:
        model = models.show_model(registry, name)
        print(json.dumps(model, indent=1) if options.json else models.model_text(model))
    return 0


def _registry(options: argparse.Namespace) -> Any:
    from paraserve.components.register.registry import Registry

    if options.registry and "://" not in options.registry and not Path(options.registry).is_dir():
        raise ValueError(f"--registry {options.registry} is no folder; give the registry's path or gs:// address")
    return Registry(options.registry or Workdir(options.workdir.absolute()).places["registry"])


if __name__ == "__main__":
    sys.exit(main())
