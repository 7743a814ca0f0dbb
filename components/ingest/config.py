"""The settings of ingest and their checks."""

import dataclasses
from dataclasses import dataclass
from typing import Any

SPLIT_KINDS = ("random", "time")
DELIMITERS = {"comma": ",", "tab": "\t"}


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What to read, how to split it and where to put it."""

    data: str
    """A path, folder, glob or gs:// address of delimited text files, plain or gzipped (.gz)."""
    feature_spec: str
    """A path or gs:// address of the feature spec, or the YAML itself."""
    shards: str
    """The folder (path or gs://) below which packed data sets stand, each in a folder named by its content key."""
    delimiter: str = "auto"
    """auto (by the file's name, else by its first line), comma, tab, or one ASCII character."""
    column_names: str = ""
    """Comma-separated names, for files without a header; empty means that the first line of each file is the header."""
    split: str = "random"
    """random (by `split_seed`), or time (oldest rows train, then eval, the newest test)."""
    eval_fraction: float = 0.1
    """Share of the kept rows, above 0; with `test_fraction` below 1."""
    test_fraction: float = 0.1
    """Share of the kept rows, above 0; with `eval_fraction` below 1."""
    split_seed: int = 0
    """Decides the random split and the order of the train rows; 0 or more."""
    shard_rows: int = 65536
    """Rows of a full shard, 1 to 2**24; ingest holds up to four shards of train rows in memory to shuffle them."""
    max_bad_fraction: float = 0.01
    """The step fails when more than this share of the rows is bad; 0 to 1."""
    quarantine_values: bool = False
    """Whether the quarantine file holds the bad rows' values beside their line numbers and reasons."""
    raw_sample_rows: int = 2000
    """Rows of the eval split that are kept as text too, for replaying requests; 0 or more."""

    def __post_init__(self) -> None:
        self._check_texts()
        self._check_fractions()
        _require(0 <= self.split_seed < 2**63, "split_seed", self.split_seed, "a whole number from 0 to 2**63 - 1")
        _require(1 <= self.shard_rows <= 2**24, "shard_rows", self.shard_rows, "a whole number from 1 to 16777216")
        _require(self.raw_sample_rows >= 0, "raw_sample_rows", self.raw_sample_rows, "0 or more")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names of files without a header; none where the files have one."""
        return tuple(name.strip() for name in self.column_names.split(",")) if self.column_names.strip() else ()

    @property
    def content(self) -> dict[str, Any]:
        """The settings that decide what the data set holds, as its manifest records them."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in ("data", "feature_spec", "shards")}

    def _check_texts(self) -> None:
        _require(bool(self.data.strip()), "data", self.data, "a path, a folder, a glob or a gs:// address")
        _require(bool(self.shards.strip()), "shards", self.shards, "a folder's path or gs:// address")
        _require(self.split in SPLIT_KINDS, "split", self.split, f"one of {', '.join(SPLIT_KINDS)}")
        known = self.delimiter in ("auto", *DELIMITERS)
        usable = len(self.delimiter) == 1 and self.delimiter.isascii() and self.delimiter not in '"\r\n'
        _require(known or usable, "delimiter", self.delimiter, "auto, comma, tab, or one ASCII character that is no quote")
        twice = {name for name in self.names if self.names.count(name) > 1 or not name}
        _require(not twice, "column_names", self.column_names, "names that are not empty and stand once each")

    def _check_fractions(self) -> None:
        for name in ("eval_fraction", "test_fraction"):
            _require(0 < getattr(self, name) < 1, name, getattr(self, name), "a share above 0 and below 1")
        both = self.eval_fraction + self.test_fraction
        _require(both < 1, "eval_fraction + test_fraction", both, "two shares that leave some of 1 for the train split")
        _require(0 <= self.max_bad_fraction <= 1, "max_bad_fraction", self.max_bad_fraction, "a share from 0 to 1")


def _require(holds: bool, name: str, value: Any, remedy: str) -> None:
    if not holds:
        raise ValueError(f"`{name}` is {value!r}; give {remedy}")
