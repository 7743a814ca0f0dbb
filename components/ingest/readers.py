"""Reading delimited text: batches of rows as text, each row with the number of the line it starts on.

Arrow's streaming reader does the parsing (https://arrow.apache.org/docs/python/csv.html). It numbers rows, not lines; lines
are counted here: one for each row, and one more for each line break inside a quoted value. A line break is \\n, \\r\\n or \\r.
"""

import codecs
import contextlib
import csv
import difflib
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from paraserve.components import storage
from paraserve.components.ingest.config import DELIMITERS, IngestConfig

BLOCK_BYTES = 1 << 21
"""How much is parsed at once; no row may be longer."""
NOT_UTF8 = "\U0010fffe"
"""Stands for a byte that is no UTF-8. A Unicode noncharacter, which no text that is meant to be exchanged holds."""
MALFORMED_TEXT = 1000
"""Characters that are kept of a row that could not be parsed."""

codecs.register_error("paraserve.mark", lambda error: (NOT_UTF8, getattr(error, "end", 0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file that is ready to be read."""

    place: str
    size: int
    version: str
    delimiter: str
    names: tuple[str, ...]
    """Of all its columns, in their order."""
    has_header: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Malformed:
    """A row with too few or too many fields."""

    line: int
    span: int
    """Lines that it takes; many where a quote was not closed."""
    text: str
    """Its first `MALFORMED_TEXT` characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Some rows of a file, in their order."""

    place: str
    texts: dict[str, pa.StringArray]
    """The wanted columns as they stand in the file, without their quotes."""
    lines: npt.NDArray[np.int64]
    """int64 [n], from 1: the line that each row starts on."""
    index: npt.NDArray[np.int64]
    """int64 [n]: each row's number in all the files, from 0; headers do not count, blank lines and malformed rows do."""
    malformed: tuple[Malformed, ...]
    blank_lines: int
    """Lines without any value; they are no rows."""
    end: int
    """The index of the row that comes after these."""


def find_sources(config: IngestConfig, columns: Sequence[str]) -> tuple[Source, ...]:
    """The files that the configuration names, in the order of their names, each checked by its first line.

    Raises ValueError when none matches, one is empty or lacks one of `columns`.
    """
    # Spark and Hive mark folders with files such as _SUCCESS, which are no data.
    files = [file for file in storage.list_files(config.data) if not file.place.rpartition("/")[2].startswith("_")]
    if not files:
        raise ValueError(f"no file matches '{config.data}'; set `data` to a path, folder, glob or gs:// address that does")
    sources = tuple(_source(info, config) for info in files)
    for source in sources:
        _check_columns(source, columns)
    return sources


def _source(info: storage.FileInfo, config: IngestConfig) -> Source:
    with _opened(info.place) as file:
        start = file.read(BLOCK_BYTES).removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    if not start.strip():
        raise ValueError(f"{info.place} is empty; remove it from `data`, or write it again")
    delimiter = DELIMITERS.get(config.delimiter, config.delimiter)
    delimiter = _guessed_delimiter(info.place, start) if delimiter == "auto" else delimiter
    first = _first_row(info.place, start, delimiter)
    if config.names and len(config.names) != len(first):
        raise ValueError(
            f"`column_names` names {len(config.names)} columns, but the first line of {info.place} has {len(first)} fields "
            f"(delimiter {delimiter!r}); name them all in their order, or correct the delimiter"
        )
    names = config.names or tuple(name.strip() for name in first)
    return Source(
        place=info.place,
        size=info.size,
        version=info.version,
        delimiter=delimiter,
        names=names,
        has_header=not config.names,
    )


def _guessed_delimiter(place: str, start: str) -> str:
    name = place.lower().removesuffix(".gz")
    if name.endswith(".tsv"):
        return "\t"
    if name.endswith(".csv"):
        return ","
    first = start.splitlines()[0]
    found = next((c for c in "\t,;|" if c in first), None)
    if found is None:
        raise ValueError(f"cannot tell the delimiter of {place} from its first line; set `delimiter`")
    return found


def _first_row(place: str, start: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(start, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(f"the first line of {place} cannot be read ({error}); is it a delimited text file?") from error


def _check_columns(source: Source, columns: Sequence[str]) -> None:
    twice = [name for name in columns if source.names.count(name) > 1]
    if twice:
        raise ValueError(f"{source.place} has the column '{twice[0]}' more than once; give each column a name of its own")
    missing = [name for name in columns if name not in source.names]
    if missing:
        near = {name: difflib.get_close_matches(name, source.names, n=1) for name in missing}
        asked = ", ".join(f"'{name}'" + (f" (did you mean '{near[name][0]}'?)" if near[name] else "") for name in missing)
        raise ValueError(
            f"{source.place} lacks the column{'s' * (len(missing) > 1)} {asked}; found are {', '.join(source.names)} "
            f"(delimiter {source.delimiter!r}). Correct the feature spec, the delimiter or `column_names`"
        )


def read_rows(source: Source, columns: Sequence[str], first: int = 0, block_bytes: int = BLOCK_BYTES) -> Iterator[Rows]:
    """Reads a file, whose first row gets the index `first`, in batches of about `block_bytes`.

    Raises ValueError for a damaged file, or a row longer than `block_bytes`.
    """
    counter = _LineCounter(source, first)
    try:
        with _opened(source.place) as file:
            for batch in _batches(source, file, counter, block_bytes):
                yield _rows(source, columns, counter, batch)
        if counter.malformed:  # no row that could be parsed came after them
            yield _rows(source, columns, counter, pa.RecordBatch.from_pylist([], _schema(source)))
    except (pa.ArrowInvalid, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{source.place} cannot be read after line {counter.line - 1}: {error}. A quote that is never closed, a row of "
            f"more than {block_bytes} bytes and a damaged .gz file look like this; correct the file"
        ) from error


@contextlib.contextmanager
def _opened(place: str) -> Iterator[BinaryIO]:
    with storage.open_input(place) as file:
        if place.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as plain:
                yield plain  # type: ignore[misc]
        else:
            yield file


class _MarkedStream(io.RawIOBase):
    """Passes UTF-8 on and puts `NOT_UTF8` for each byte sequence that is none: Arrow gives up on a malformed row with one."""

    def __init__(self, file: BinaryIO):
        self.file, self.left = file, b""
        self.decoder = codecs.getincrementaldecoder("utf-8")("paraserve.mark")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self.left) < size:
            raw = self.file.read(size)
            plain = raw.isascii() and not self.decoder.getstate()[0]
            self.left += raw if plain else self.decoder.decode(raw, final=not raw).encode()
            if not raw:
                break
        taken, self.left = self.left[:size], self.left[size:]
        return taken


def _schema(source: Source) -> pa.Schema:
    # Columns go by their position, since a column that nobody wants may have any name.
    return pa.schema([(str(i), pa.string()) for i in range(len(source.names))])


def _batches(source: Source, file: BinaryIO, counter: "_LineCounter", block_bytes: int) -> Iterator[pa.RecordBatch]:
    schema = _schema(source)
    reader = arrow_csv.open_csv(
        _MarkedStream(file),
        # Row numbers are only known when one thread reads.
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=schema.names),
        parse_options=arrow_csv.ParseOptions(
            delimiter=source.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=False,  # Arrow would not count them
            invalid_row_handler=counter.skip,
        ),
        convert_options=arrow_csv.ConvertOptions(column_types=schema, strings_can_be_null=False, check_utf8=False),
    )
    with reader:
        yield from reader


def _rows(source: Source, columns: Sequence[str], counter: "_LineCounter", batch: pa.RecordBatch) -> Rows:
    numbers, lines, malformed = counter.place(_line_breaks(batch))
    blank = _is_blank(batch)
    wanted = ~blank & (numbers > counter.header_rows)
    selected = pa.array(np.flatnonzero(wanted))
    return Rows(
        place=source.place,
        texts={name: batch.column(source.names.index(name)).take(selected) for name in columns},
        lines=lines[wanted],
        index=numbers[wanted] + counter.to_index,
        malformed=malformed,
        blank_lines=int(blank.sum()),
        end=counter.row + counter.to_index,
    )


def _line_breaks(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """How many line breaks stand inside the values of each row; int64 [rows]."""
    breaks = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        counts = {text: pc.count_substring(column, text).to_numpy(zero_copy_only=False) for text in ("\n", "\r")}
        breaks += counts["\n"] + counts["\r"]
        if counts["\n"].any() and counts["\r"].any():
            breaks -= pc.count_substring(column, "\r\n").to_numpy(zero_copy_only=False)
    return breaks


def _is_blank(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """bool [rows]: no column has a text. An empty line looks like this, and so does one of nothing but delimiters."""
    blank = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        if not blank.any():
            break
        blank &= pc.binary_length(column).to_numpy(zero_copy_only=False) == 0
    return blank


class _LineCounter:
    """Follows a file row by row. Rows are numbered from 1, the header, blank lines and malformed rows included."""

    def __init__(self, source: Source, first: int):
        self.row = self.line = 1
        """Of the next row."""
        self.header_rows = int(source.has_header)
        self.to_index = first - 1 - self.header_rows
        """What makes a row's number its index."""
        self.malformed: list[tuple[int, int, str]] = []
        """Row number, line breaks inside, and text of malformed rows that no batch has taken yet."""

    def skip(self, row: Any) -> str:
        text = row.text
        breaks = text.count("\n") + text.count("\r") - text.count("\r\n")
        self.malformed.append((row.number, breaks, text[:MALFORMED_TEXT]))
        return "skip"

    def place(
        self, breaks: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[Malformed, ...]]:
        """Row numbers and first lines of the next parsed rows, and the malformed rows among and right after them.

        Args:
            breaks: the line breaks inside each parsed row, int64 [n].
        """
        skipped = np.array([number for number, _, _ in self.malformed], np.int64)
        numbers = np.setdiff1d(np.arange(self.row, self.row + len(breaks) + len(skipped)), skipped, assume_unique=True)
        numbers = numbers[: len(breaks)]
        after = int(numbers[-1]) + 1 if len(numbers) else self.row
        among = int((skipped < after).sum())
        # Nothing parsed stands between the last parsed row and malformed rows that follow it without a gap.
        following = skipped[among:] == after + np.arange(len(skipped) - among)
        taken = self.malformed[: among + int(np.logical_and.accumulate(following).sum())]
        self.malformed = self.malformed[len(taken) :]
        heights = np.ones(len(breaks) + len(taken), np.int64)
        heights[numbers - self.row] += breaks
        for number, inside, _ in taken:
            heights[number - self.row] += inside
        starts = self.line + np.cumsum(heights) - heights
        lines = starts[numbers - self.row]
        found = tuple(
            Malformed(line=int(starts[number - self.row]), span=inside + 1, text=text) for number, inside, text in taken
        )
        self.row, self.line = self.row + len(heights), self.line + int(heights.sum())
        return numbers, lines, found
