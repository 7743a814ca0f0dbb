"""Reading: line numbers, quotes, encodings, and the first line's checks."""

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.readers import NOT_UTF8, Malformed, Source, find_sources, read_rows


def config(data: Path | str, **settings: object) -> IngestConfig:
    return IngestConfig(data=str(data), feature_spec="unused", shards="unused", **settings)  # type: ignore[arg-type]


def written(tmp_path: Path, content: bytes, name: str = "data.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def source_of(tmp_path: Path, content: bytes, columns: tuple[str, ...] = ("a", "b"), **settings: object) -> Source:
    (source,) = find_sources(config(written(tmp_path, content), **settings), columns)
    return source


class Read:
    """A whole file, its batches put together."""

    def __init__(self, source: Source, columns: tuple[str, ...] = ("a", "b"), block_bytes: int = 1 << 16, first: int = 0):
        batches = list(read_rows(source, columns, first, block_bytes))
        self.batches = len(batches)
        self.rows = [row for b in batches for row in zip(*(b.texts[c].to_pylist() for c in columns), strict=True)]
        self.lines = np.concatenate([b.lines for b in batches]).tolist()
        self.index = np.concatenate([b.index for b in batches]).tolist()
        self.malformed = [row for b in batches for row in b.malformed]
        self.blank_lines = sum(b.blank_lines for b in batches)
        self.end = batches[-1].end


def test_rows_and_their_lines(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b"a,b\n1,x\n2,y\n"))
    assert read.rows == [("1", "x"), ("2", "y")]
    assert (read.lines, read.index, read.end) == ([2, 3], [0, 1], 2)


def test_short_long_and_empty_lines_move_the_numbers_that_follow(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b"a,b\n1,x\n\nshort\n2,y\nl,o,n,g\n\n\n3,z\nend\n"))
    assert read.rows == [("1", "x"), ("2", "y"), ("3", "z")]
    assert read.lines == [2, 5, 9]
    assert [(row.line, row.text) for row in read.malformed] == [(4, "short"), (6, "l,o,n,g"), (10, "end")]
    assert read.blank_lines == 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 16])
def test_lines_over_many_blocks_agree_with_a_count_by_hand(tmp_path: Path, end: str, block_bytes: int) -> None:
    chance = random.Random(7)
    lines, good, bad = ["a,b"], [], []
    while len(lines) < 1500:
        line = len(lines) + 1
        match chance.randrange(8):
            case 0:
                lines.append("")
            case 1:
                lines.append(str(line))
                bad.append(line)
            case 2:
                lines.append(f"{line},1,2")
                bad.append(line)
            case 3:
                lines += [f'{line},"x', "", 'y"']  # a value of three lines, one of them empty
                good.append(line)
            case 4:
                lines += [f'{line},"x', 'y",2']
                bad.append(line)
            case _:
                lines.append(f"{line},x")
                good.append(line)
    read = Read(source_of(tmp_path, end.join(lines).encode()), block_bytes=block_bytes)
    assert [int(a) for a, _ in read.rows] == read.lines == good
    assert [row.line for row in read.malformed] == [int(row.text.split(",")[0]) for row in read.malformed] == bad
    assert read.batches > 1 or block_bytes > 64


def test_the_batch_size_changes_nothing_else(tmp_path: Path) -> None:
    rows = b"".join(b'%d,"v\n%d"\n%s' % (i, i, b"bad\n\n" if i % 7 == 0 else b"") for i in range(500))
    source = source_of(tmp_path, b"a,b\n" + rows)
    small, large = Read(source, block_bytes=64), Read(source)
    assert small.batches > 10 > large.batches
    for name in ("rows", "lines", "index", "malformed", "blank_lines", "end"):
        assert getattr(small, name) == getattr(large, name)


def test_quotes_hold_delimiters_quotes_and_line_breaks(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b'a,b\n"1,5","say ""hi"""\r\n"two\nlines",x\n3,y\n'))
    assert read.rows == [("1,5", 'say "hi"'), ("two\nlines", "x"), ("3", "y")]
    assert read.lines == [2, 3, 5]


def test_a_line_break_in_a_column_that_nobody_wants_counts(tmp_path: Path) -> None:
    source = source_of(tmp_path, b'a,note,b\n1,"x\ny",2\n3,z,4\n')
    read = Read(source)
    assert read.rows == [("1", "2"), ("3", "4")]
    assert read.lines == [2, 4]


def test_an_unclosed_quote_counts_for_every_line_that_it_takes(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b'a,b\n1,x\n"2,y\n3,z\n4,z\n'))
    assert read.rows == [("1", "x")]
    assert [(row.line, row.span) for row in read.malformed] == [(3, 3)]


def test_rows_that_are_all_malformed(tmp_path: Path) -> None:
    source = source_of(tmp_path, b"a,b\n" + b"1\n" * 40)
    read = Read(source, block_bytes=16)
    assert read.rows == []
    assert [row.line for row in read.malformed] == list(range(2, 42))
    assert read.malformed[0] == Malformed(line=2, span=1, text="1")


def test_the_byte_order_mark_is_no_part_of_a_name_or_value(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b"\xef\xbb\xbfa,b\r\n1,x\r\n"))
    assert read.rows == [("1", "x")]
    read = Read(source_of(tmp_path, b"\xef\xbb\xbf1,x\r\n2,y\r\n", column_names="a,b"))
    assert read.rows == [("1", "x"), ("2", "y")]
    assert (read.lines, read.index) == ([1, 2], [0, 1])


@pytest.mark.parametrize("block_bytes", [16, 1 << 16])
def test_bytes_that_are_no_utf8_are_marked_even_in_a_malformed_row(tmp_path: Path, block_bytes: int) -> None:
    content = "a,b\n1,å\n".encode() + b"2,\xff\xfe\n\xe2\x82,3\n\xff,1,2\n4," + "日本\n".encode()
    read = Read(source_of(tmp_path, content), block_bytes=block_bytes)
    assert [row[0] for row in read.rows] == ["1", "2", NOT_UTF8, "4"]
    assert [row[1] for row in read.rows] == ["å", NOT_UTF8 * 2, "3", "日本"]
    assert [(row.line, row.text) for row in read.malformed] == [(5, NOT_UTF8 + ",1,2")]


def test_gzip_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"a\tb\n1\tx\n"), "data.tsv.gz")
    (source,) = find_sources(config(path), ("a", "b"))
    assert Read(source).rows == [("1", "x")]


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    content = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(400_000)))
    path = written(tmp_path, content[: len(content) * 9 // 10], "data.csv.gz")
    (source,) = find_sources(config(path), ("a", "b"))
    with pytest.raises(ValueError, match=r"data\.csv\.gz cannot be read after line \d+.*correct the file"):
        Read(source, block_bytes=1 << 20)


def test_a_row_longer_than_a_block(tmp_path: Path) -> None:
    source = source_of(tmp_path, b"a,b\n1,2\n" + b"x" * 300 + b",2\n")
    with pytest.raises(ValueError, match=r"cannot be read after line 2: .*more than 64 bytes"):
        Read(source, block_bytes=64)


def test_without_a_header_the_first_line_is_a_row(tmp_path: Path) -> None:
    read = Read(source_of(tmp_path, b"1,x\nshort\n2,y\n", column_names="a, b"), first=10)
    assert read.rows == [("1", "x"), ("2", "y")]
    assert (read.lines, read.index, read.end) == ([1, 3], [10, 12], 13)


@pytest.mark.parametrize(
    ("name", "content", "delimiter", "expected"),
    [
        ("x.tsv", b"a\tb,c\n", "auto", "\t"),
        ("x.csv", b"a,b\tc\n", "auto", ","),
        ("x.csv.gz", gzip.compress(b"a,b\n"), "auto", ","),
        ("x.log", b"a\tb,c\n", "auto", "\t"),
        ("x.log", b"a,b;c\n", "auto", ","),
        ("x.log", b"a;b|c\n", "auto", ";"),
        ("x.log", b"a|b\n", "auto", "|"),
        ("x.csv", b"a\tb\n", "tab", "\t"),
        ("x.tsv", b"a,b\n", "comma", ","),
        ("x.csv", b"a b\n", " ", " "),
    ],
)
def test_the_delimiter(tmp_path: Path, name: str, content: bytes, delimiter: str, expected: str) -> None:
    (source,) = find_sources(config(written(tmp_path, content, name), delimiter=delimiter), ("a",))
    assert source.delimiter == expected


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"", {}, r"data\.csv is empty"),
        (b" \n", {}, r"data\.csv is empty"),
        (b"a,bb\n1,2\n", {}, r"lacks the column 'b' \(did you mean 'bb'\?\); found are a, bb"),
        (b"x;y\n", {}, r"lacks the columns 'a', 'b'; found are x;y \(delimiter ','\)"),
        (b"a,b,a\n", {}, "has the column 'a' more than once"),
        (b"1,2\n", {"column_names": "a,b,c"}, r"names 3 columns, but the first line of .* has 2 fields"),
    ],
)
def test_what_the_first_line_tells(tmp_path: Path, content: bytes, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source_of(tmp_path, content, **settings)


def test_a_delimiter_that_nothing_tells(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot tell the delimiter of .*set `delimiter`"):
        find_sources(config(written(tmp_path, b"ab\n", "x.log")), ("ab",))


def test_no_file_matches(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file matches '.*\*\.csv'"):
        find_sources(config(tmp_path / "*.csv"), ("a",))


def test_several_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv"):
        written(tmp_path, b"a,b\n", name)
    written(tmp_path, b"", "_SUCCESS")
    assert [Path(s.place).name for s in find_sources(config(tmp_path), ("a", "b"))] == ["a.csv", "b.csv"]
