"""The pipeline's parameters, as the command line and the documentation see them: read from the pipeline function itself."""

import difflib
import functools
import inspect
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docstring_parser
import yaml

Value = str | int | float | bool

_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_EXPECTED = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter of the pipeline."""

    name: str
    type: type
    """str, int, float or bool."""
    default: Value | None
    """None when the parameter must be given."""
    description: str

    def parse(self, value: Any) -> Value:
        """A value as the command line or YAML gives it, in the parameter's type. Raises ValueError."""
        parsed = _converted(self.type, value)
        if parsed is None or (isinstance(parsed, float) and not math.isfinite(parsed)):
            raise ValueError(f"parameter '{self.name}' is {value!r}; give {_EXPECTED[self.type]}")
        return parsed


def _converted(kind: type, value: Any) -> Value | None:
    """`value` as `kind`, or None where it is not one. Texts are read as on the command line: YAML takes 1e-3 for a text."""
    if kind is str:
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if kind is bool:
        return value if isinstance(value, bool) else _BOOLS.get(str(value).strip().lower())
    if isinstance(value, bool) or not isinstance(value, str | int | float) or (kind is int and isinstance(value, float)):
        return None
    try:
        return kind(value)
    except ValueError:
        return None


@functools.cache
def parameters() -> Mapping[str, Parameter]:
    """All parameters by name, in the pipeline's order."""
    # Imported here, since kfp takes a second and most subcommands do without it.
    from paraserve.pipelines.train_to_serve import train_to_serve

    function = train_to_serve.pipeline_func
    descriptions = {entry.arg_name: entry.description or "" for entry in docstring_parser.parse(function.__doc__).params}
    return {
        name: Parameter(
            name=name,
            type=parameter.annotation,
            default=None if parameter.default is inspect.Parameter.empty else parameter.default,
            description=descriptions[name],
        )
        for name, parameter in inspect.signature(function).parameters.items()
    }


def parse_values(given: Mapping[Any, Any]) -> dict[str, Value]:
    """Checks names and types. Raises ValueError that names the closest parameter to an unknown one."""
    known = parameters()
    for name in given:
        if name not in known:
            raise ValueError(f"there is no parameter '{name}'{_suggestion(str(name), known)}")
    return {name: known[name].parse(value) for name, value in given.items()}


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else "; `paraserve run --list` and docs/parameters.md list all"


def read_file(path: Path) -> dict[Any, Any]:
    """The parameters in a YAML file, unchecked. Raises ValueError."""
    try:
        text = path.read_text()
        content, node = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the parameters in {path}: {error}") from error
    if not isinstance(content, dict) or not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{path} must hold `name: value` lines, one for each parameter")
    names = Counter(key.value for key, _ in node.value)
    if twice := [name for name, count in names.items() if count > 1]:  # plain YAML keeps the last one
        raise ValueError(f"{path} holds {', '.join(twice)} more than once; keep one line for each parameter")
    return content


def read_settings(settings: Iterable[str]) -> dict[str, str]:
    """The parameters of `--set name=value`, unchecked. Raises ValueError."""
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {setting} is not understood; write --set name=value")
        values[name.strip()] = value
    return values


def complete(given: Mapping[str, Value]) -> dict[str, Value]:
    """Adds the defaults. Raises ValueError when a parameter without a default is missing."""
    defaults = {name: parameter.default for name, parameter in parameters().items()}
    missing = [name for name, default in defaults.items() if default is None and name not in given]
    if missing:
        example = " ".join(f"--set {name}=..." for name in missing)
        raise ValueError(f"missing {', '.join(missing)}; give {example}, or put it into a --params file")
    return {**{name: default for name, default in defaults.items() if default is not None}, **given}
