"""The feature spec: one YAML file that says which columns of the log are the label, the time, and the features.

    label: {column: rating, positive_at_least: 4}      # or positive_values: ["1", "yes"]
    time: timestamp                                    # optional: epoch numbers or ISO 8601
    missing_values: ["NA", "?"]                        # texts that stand for "no value"; the empty text always does
    dense:
      age: {transforms: [log1p, {clip: [0, 5]}, standardise]}
    categorical:
      user_id: {dimension: 16, rows: 1000}
      gender: {dimension: 4, rows: 8, values: [M, F]}  # optional closed set: any other value is "out of range"
    lists:
      genres: {dimension: 8, rows: 64, separator: "|", pooling: mean, max_length: 20}
      history: {dimension: 16, rows: 2000, table: item_id}   # shares the keys and the table of item_id

A table with `rows` is static: a key takes row `key mod rows`, and keys may collide. One with `max_keys`, or the `memory_mb`
that its rows may take on all servers, is dynamic: a key gets a row of its own, and rows cost memory when they are used.

      device_id: {dimension: 16, max_keys: 100000000, admit_after: 2, evict: lru}
      ad_id: {dimension: 16, memory_mb: 4096, evict: ttl, ttl_steps: 100000}

Each feature reads the column of its own name unless it says `column: OTHER`.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from paraserve.components import storage
from paraserve.components.features.transforms import Transform, parse_transforms

MAX_DIMENSION = 4096
POOLINGS = ("sum", "mean")
EVICTIONS = ("none", "lru", "lfu", "ttl")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What makes an example positive."""

    column: str
    positive_at_least: float | None = None
    """Positive when the number in the column is at least this."""
    positive_values: tuple[str, ...] | None = None
    """Positive when the text in the column is one of these."""

    def __post_init__(self) -> None:
        if (self.positive_at_least is None) == (self.positive_values is None):
            raise ValueError(f"label '{self.column}': give either `positive_at_least` or `positive_values`, and only one")
        if self.positive_values is not None and not self.positive_values:
            raise ValueError(f"label '{self.column}': `positive_values` is empty; name at least one value")


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseColumn:
    """A number."""

    name: str
    column: str
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedColumn:
    """What categorical and list columns have in common: a table of embedding rows."""

    name: str
    column: str
    dimension: int
    """Length of an embedding row."""
    table: str
    """The column whose keys (as salt) and table this one uses; its own name unless it shares."""
    rows: int = 0
    """Rows of a static table; a key takes row `key mod rows`. 0 where the table is dynamic."""
    max_keys: int = 0
    """Keys of a dynamic table that may have a row of their own, on all servers together; 0 where `memory_mb` says it."""
    memory_mb: int = 0
    """MiB that the rows of a dynamic table, their optimizer slots and keys may take, on all servers together."""
    admit_after: int = 1
    """The sighting that gives a key its row in a dynamic table; before it, the key shares a row with others."""
    evict: str = "none"
    """Which keys a dynamic table gives up when it is full: none, lru (seen longest ago), lfu (seen least often); or ttl, those
    not seen for `ttl_steps`, full or not."""
    ttl_steps: int = 0
    """Steps of the run; for `evict: ttl`."""
    values: tuple[str, ...] | None = None
    """The closed set of values, or None for any."""

    def __post_init__(self) -> None:
        _in_range(self.name, "dimension", self.dimension, 1, MAX_DIMENSION)
        self._check_size()
        if self.values is not None and not self.values:
            raise ValueError(f"column '{self.name}': `values` is empty; name at least one value, or leave it out")

    def _check_size(self) -> None:
        sizes = {name: getattr(self, name) for name in ("rows", "max_keys", "memory_mb")}
        for name, value in sizes.items():
            _in_range(self.name, name, value, 0, 2**31 - 1)
        given = [name for name, value in sizes.items() if value]
        if len(given) != 1:
            raise ValueError(
                f"column '{self.name}' has {' and '.join(f'`{n}`' for n in given) or 'no size'}; give either `rows` (a static "
                "table), `max_keys` or `memory_mb` (a dynamic one)"
            )
        _in_range(self.name, "admit_after", self.admit_after, 1, 2**31 - 1)
        _in_range(self.name, "ttl_steps", self.ttl_steps, 0, 2**31 - 1)
        if self.evict not in EVICTIONS:
            raise ValueError(f"column '{self.name}': `evict` is {self.evict!r}; use one of {', '.join(EVICTIONS)}")
        if (self.evict == "ttl") != (self.ttl_steps > 0):
            raise ValueError(f"column '{self.name}': `evict: ttl` and `ttl_steps` belong together; give both, or neither")
        if self.rows and (self.admit_after > 1 or self.evict != "none"):
            raise ValueError(
                f"column '{self.name}': `admit_after` and `evict` have no effect on a static table; remove them, or give "
                "`max_keys` instead of `rows`"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoricalColumn(EmbeddedColumn):
    """One value out of many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListColumn(EmbeddedColumn):
    """Several values, or a sequence of behaviours with the newest last."""

    separator: str = "|"
    """What stands between two items of the text."""
    pooling: str = "mean"
    """How the items' rows become one: sum or mean; an empty list gives zeros."""
    max_length: int = 50
    """A longer list keeps its last `max_length` items."""

    def __post_init__(self) -> None:
        # super() without arguments does not work in a dataclass with slots.
        EmbeddedColumn.__post_init__(self)
        _in_range(self.name, "max_length", self.max_length, 1, 10_000)
        if not self.separator:
            raise ValueError(f"column '{self.name}': `separator` is empty; give the character between two items")
        if self.pooling not in POOLINGS:
            raise ValueError(f"column '{self.name}': unknown pooling '{self.pooling}'; use one of {', '.join(POOLINGS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One embedding table: the rows of all columns that share it."""

    name: str
    dimension: int
    rows: int
    max_keys: int
    memory_mb: int
    admit_after: int
    evict: str
    ttl_steps: int

    @classmethod
    def of(cls, owner: EmbeddedColumn) -> "Table":
        """The table that the column of its name describes."""
        return cls(**{field.name: getattr(owner, field.name) for field in dataclasses.fields(cls)})

    @property
    def dynamic(self) -> bool:
        """Whether a key has a row of its own."""
        return not self.rows


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """The columns of a log. Make one with `load_spec` or `parse_spec`, which check it."""

    label: Label
    time: str | None = None
    dense: tuple[DenseColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()
    lists: tuple[ListColumn, ...] = ()
    missing_values: tuple[str, ...] = ("",)
    source: Mapping[str, Any] = field(repr=False, compare=False, hash=False)
    """The mapping that this was parsed from; written into manifests, so that every reader parses the same spec."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_tables()

    @property
    def features(self) -> tuple[DenseColumn | CategoricalColumn | ListColumn, ...]:
        return (*self.dense, *self.categorical, *self.lists)

    @property
    def embedded(self) -> tuple[CategoricalColumn | ListColumn, ...]:
        return (*self.categorical, *self.lists)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the log that are read, each once."""
        names = [self.label.column, *([self.time] if self.time else []), *(f.column for f in self.features)]
        return tuple(dict.fromkeys(names))

    @functools.cached_property
    def tables(self) -> dict[str, Table]:
        """The embedding tables by name."""
        owners = {column.name: column for column in self.embedded}
        names = dict.fromkeys(column.table for column in self.embedded)
        return {name: Table.of(owners[name]) for name in names}

    @functools.cached_property
    def id_slices(self) -> dict[str, slice]:
        """Where each categorical and list column stands in the id matrix, int64 [examples, `id_width`]: one place for a
        categorical column, `max_length` places for a list, unused ones holding `keys.PADDING`."""
        slices, start = {}, 0
        for column in self.embedded:
            width = column.max_length if isinstance(column, ListColumn) else 1
            slices[column.name] = slice(start, start + width)
            start += width
        return slices

    @property
    def id_width(self) -> int:
        return max((s.stop for s in self.id_slices.values()), default=0)

    @functools.cached_property
    def digest(self) -> str:
        """sha256 over what the spec says, whatever its layout in YAML."""
        said = dataclasses.asdict(self)
        said.pop("source")
        said["transforms"] = [[repr(t) for t in column.transforms] for column in self.dense]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=repr).encode()).hexdigest()

    def _check_names(self) -> None:
        if not self.features:
            raise ValueError("the spec has no features; describe at least one under dense, categorical or lists")
        for name, count in Counter(feature.name for feature in self.features).items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"feature name '{name}' is not usable in a model; use letters, digits and _, up to 63")
            if count > 1:
                raise ValueError(f"feature name '{name}' stands {count} times; give each feature a name of its own")
        for feature in self.features:
            if feature.column == self.label.column:
                raise ValueError(
                    f"feature '{feature.name}' reads the label's column '{feature.column}': "
                    "the model would see the answer; remove it"
                )

    def _check_tables(self) -> None:
        owners = {column.name: column for column in self.embedded}
        for column in self.embedded:
            owner = owners.get(column.table)
            if owner is None or owner.table != owner.name:
                raise ValueError(
                    f"column '{column.name}': its table '{column.table}' is not a categorical or list column with a table "
                    f"of its own; name one of {', '.join(n for n, c in owners.items() if c.table == n) or 'none'}"
                )
            asked, owned = (dataclasses.asdict(Table.of(c)) for c in (column, owner))
            if different := [name for name in owned if name != "name" and asked[name] != owned[name]]:
                raise ValueError(
                    f"column '{column.name}': shares the table of '{owner.name}' but asks for "
                    f"{', '.join(f'{name} {asked[name]}' for name in different)} against "
                    f"{', '.join(str(owned[name]) for name in different)}; make them equal"
                )


def _in_range(column: str, what: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"column '{column}': `{what}` is {value!r}; give a whole number from {low} to {high}")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a mapping that says one key twice, where plain YAML keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(f"'{name}' stands {count} times{node.start_mark}; keep one")
        return super().construct_mapping(node, deep)


def load_spec(text_or_uri: str) -> FeatureSpec:
    """Reads a spec from a path or gs:// address, or from the YAML itself (anything with more than one line).

    Raises ValueError that names the entry and the remedy, FileNotFoundError for a missing file.
    """
    inline = "\n" in text_or_uri.strip()
    where = "the feature spec" if inline else f"the feature spec {text_or_uri}"
    if not text_or_uri.strip():
        raise ValueError("no feature spec was given; set `feature_spec` to a path, a gs:// address or the YAML itself")
    content = text_or_uri.encode() if inline else storage.read_bytes(text_or_uri)
    try:
        return parse_spec(yaml.load(content.decode(), Loader=_StrictLoader))  # a SafeLoader
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{where}: {error}") from error


def parse_spec(source: Any) -> FeatureSpec:
    """Checks a mapping as YAML or a manifest holds it. Raises ValueError that names the entry and the remedy."""
    entries = _Entries("the spec", source)
    label = _parse_label(entries.take("label"))
    time = entries.take("time", None)
    missing_values = _texts("missing_values", entries.take("missing_values", []))
    dense = tuple(_parse_dense(*item) for item in _section(entries, "dense"))
    categorical = tuple(CategoricalColumn(**_parse_embedded(*item)) for item in _section(entries, "categorical"))
    lists = tuple(_parse_list(*item) for item in _section(entries, "lists"))
    entries.end()  # before the spec's own checks: a misspelt section would look like one without features
    return FeatureSpec(
        label=label,
        time=_text("time", time) if time is not None else None,
        missing_values=tuple(dict.fromkeys(("", *missing_values))),
        dense=dense,
        categorical=categorical,
        lists=lists,
        source=source,
    )


class _Entries:
    """A mapping whose entries are taken one by one; what nobody took is unknown."""

    def __init__(self, where: str, value: Any):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is {value!r}; it must be a mapping of names to settings")
        self.where, self.left, self.known = where, dict(value), []  # type: ignore[var-annotated]

    def take(self, name: str, *default: Any) -> Any:
        self.known.append(name)
        if name not in self.left and not default:
            there = f" (there is {', '.join(f'`{n}`' for n in self.left)})" if self.left else ""
            raise ValueError(f"{self.where}: `{name}` is missing{there}; add it")
        return self.left.pop(name, *default)

    def end(self) -> None:
        if self.left:
            unknown = ", ".join(f"`{name}`" for name in self.left)
            raise ValueError(f"{self.where}: unknown entry {unknown}; known are {', '.join(self.known)}")


def _section(entries: _Entries, name: str) -> Iterator[tuple[str, _Entries]]:
    section = entries.take(name, None)
    if section is None:
        return
    if not isinstance(section, Mapping):
        raise ValueError(f"`{name}` is {section!r}; it must be a mapping of feature names to settings")
    for feature, settings in section.items():
        yield str(feature), _Entries(f"{name} feature '{feature}'", {} if settings is None else settings)


def _parse_label(value: Any) -> Label:
    entries = _Entries("label", value)
    at_least, values = entries.take("positive_at_least", None), entries.take("positive_values", None)
    if at_least is not None and (isinstance(at_least, bool) or not isinstance(at_least, int | float)):
        raise ValueError(f"label: `positive_at_least` is {at_least!r}; give a number")
    label = Label(
        column=_text("label column", entries.take("column")),
        positive_at_least=None if at_least is None else float(at_least),
        positive_values=None if values is None else _texts("positive_values", values),
    )
    entries.end()
    return label


def _parse_dense(name: str, entries: _Entries) -> DenseColumn:
    transforms = entries.take("transforms", [])
    if not isinstance(transforms, list):
        raise ValueError(f"column '{name}': `transforms` is {transforms!r}; it must be a list")
    column = DenseColumn(
        name=name, column=_text("column", entries.take("column", name)), transforms=parse_transforms(name, transforms)
    )
    entries.end()
    return column


_SIZE_DEFAULTS = {"rows": 0, "max_keys": 0, "memory_mb": 0, "admit_after": 1, "evict": "none", "ttl_steps": 0}


def _parse_embedded(name: str, entries: _Entries, end: bool = True) -> dict[str, Any]:
    values = entries.take("values", None)
    settings = {
        "name": name,
        "column": _text("column", entries.take("column", name)),
        "dimension": entries.take("dimension"),
        "table": _text("table", entries.take("table", name)),
        **{n: entries.take(n, default) for n, default in _SIZE_DEFAULTS.items()},
        "values": None if values is None else _texts("values", values),
    }
    if end:
        entries.end()
    return settings


def _parse_list(name: str, entries: _Entries) -> ListColumn:
    settings = _parse_embedded(name, entries, end=False)
    settings |= {n: entries.take(n) for n in ("separator", "pooling", "max_length") if n in entries.left}
    settings["separator"] = _text("separator", settings.get("separator", "|"))
    entries.known += [n for n in ("separator", "pooling", "max_length") if n not in entries.known]
    entries.end()
    return ListColumn(**settings)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{what}` is {value!r}; give a text (in quotes where YAML would read a number)")
    return value


def _texts(what: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or any(isinstance(v, bool | float | Mapping | list) or v is None for v in values):
        raise ValueError(f"`{what}` is {values!r}; give a list of texts (in quotes where YAML would read something else)")
    return tuple(str(v) for v in values)
