"""Bad rows: counted by reason, and listed with their lines in a file of JSON lines."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paraserve.components.ingest.checks import BadRow

FILE = "quarantine.jsonl"
NAMED_REASONS = 5


class Quarantine:
    """Writes {"file", "line", "reasons"} for each bad row, with `values` the row's values too."""

    def __init__(self, folder: Path, values: bool):
        self.path, self.values = folder / FILE, values
        self.rows_read = self.rows = 0
        """All rows, and the bad ones."""
        self.by_reason: Counter[str] = Counter()
        """A row with two reasons counts under both."""
        self.first: dict[str, str] = {}
        """For each reason the place of its first row."""
        folder.mkdir()
        self.path.touch()

    def add(self, file: str, good_rows: int, bad: Sequence[BadRow]) -> None:
        self.rows_read += good_rows
        if not bad:
            return
        for row in bad:
            self.rows += row.rows
            self.rows_read += row.rows
            for reason in row.reasons:
                self.by_reason[reason] += row.rows
                self.first.setdefault(reason, f"{file}:{row.line}")
        with self.path.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(self._entry(file, row)) + "\n" for row in bad)

    def _entry(self, file: str, row: BadRow) -> dict[str, object]:
        entry: dict[str, object] = {"file": file, "line": row.line, "reasons": row.reasons}
        return entry | {"values": row.values} if self.values else entry

    def summary(self) -> str:
        """The most frequent reasons, each with its count and where it stands first."""
        named = [f"{reason} ({n}, first at {self.first[reason]})" for reason, n in self.by_reason.most_common(NAMED_REASONS)]
        rest = len(self.by_reason) - len(named)
        return "; ".join(named) + (f"; and {rest} more reasons" if rest else "")
