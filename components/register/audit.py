"""The audit log of one model: which version was registered and promoted, when, by whom and why. Only ever appended to.

One JSON file an event, 00000001.json and on. Each holds the aliases as they stand after it and the sha256 of the event
before it: so the newest file says which version is which, and a changed event does not fit its successor. Creating the file
of event n+1 exclusively is the compare-and-swap: its writer has read event n, and who loses the race reads again.
"""

import dataclasses
import getpass
import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from paraserve.components import storage

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
REGISTERED, PROMOTED = "registered", "promoted"
NO_ALIASES: Mapping[str, str | None] = {CANDIDATE: None, CHAMPION: None, PREVIOUS: None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One entry of the log."""

    number: int
    """Counts from 1."""
    time: str
    """UTC, ISO 8601."""
    what: str
    """REGISTERED or PROMOTED."""
    version: str
    run_id: str
    reason: str
    who: str
    """user@host."""
    previous_sha256: str | None
    """Of the bytes of the event before; None in the first."""
    aliases: Mapping[str, str | None]
    """All of candidate, champion and previous, as they stand after this event."""

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), indent=1).encode()


def aliases_after(what: str, version: str, before: Mapping[str, str | None]) -> dict[str, str | None]:
    """The aliases after an event. Registering sets candidate (a champion is none); promoting moves champion and previous."""
    if before[CHAMPION] == version:
        return dict(before)
    if what == REGISTERED:
        return {**before, CANDIDATE: version}
    assert what == PROMOTED, what
    candidate = None if before[CANDIDATE] == version else before[CANDIDATE]
    return {CANDIDATE: candidate, CHAMPION: version, PREVIOUS: before[CHAMPION]}


class AuditLog:
    """The log at `place`, a folder's path or gs:// address; it need not exist."""

    def __init__(self, place: str):
        self.place = place

    def aliases(self) -> Mapping[str, str | None]:
        """The aliases as they stand: those of the newest event."""
        newest, _ = self._newest()
        return newest.aliases if newest else NO_ALIASES

    def events(self) -> tuple[Event, ...]:
        """All events, oldest first. Raises ValueError when one is missing or unreadable."""
        return tuple(event for event, _ in self._read_all())

    def append(self, what: str, version: str, *, run_id: str, reason: str) -> None:
        """Writes an event with the aliases that follow from it; one that would change none of them is not written."""
        while True:
            newest, digest = self._newest()
            before = newest.aliases if newest else NO_ALIASES
            after = aliases_after(what, version, before)
            if after == before:
                return
            event = Event(
                number=newest.number + 1 if newest else 1,
                time=datetime.now(UTC).isoformat(timespec="microseconds"),
                what=what,
                version=version,
                run_id=run_id,
                reason=reason,
                who=_who(),
                previous_sha256=digest,
                aliases=after,
            )
            # A lost race is read again. So is a won one whose answer got lost on the way: it then changes nothing.
            if storage.create_exclusive(self._event_place(event.number), event.to_json()):
                return

    def verify(self) -> None:
        """Raises ValueError at the first event that is missing, does not fit its successor, or says aliases that do not
        follow from the event before. What nobody can see without a copy: a newest event cut off, or its texts changed."""
        before, digest = NO_ALIASES, None
        for event, event_digest in self._read_all():
            if event.previous_sha256 != digest:
                raise ValueError(f"event {event.number - 1} of {self.place} was changed after event {event.number} was written")
            if event.aliases != aliases_after(event.what, event.version, before):
                raise ValueError(f"event {event.number} of {self.place} says aliases that do not follow from '{event.what}'")
            before, digest = event.aliases, event_digest

    def _read_all(self) -> list[tuple[Event, str]]:
        names = storage.list_names(self.place)
        for number, name in enumerate(names, start=1):
            if name != _file(number):
                raise ValueError(
                    f"{self.place}: expected {_file(number)}, found {name}; an event is missing or a file is not one"
                )
        return [self._read(number) for number in range(1, len(names) + 1)]

    def _newest(self) -> tuple[Event, str] | tuple[None, None]:
        names = storage.list_names(self.place)
        return self._read(int(names[-1].removesuffix(".json"))) if names else (None, None)

    def _read(self, number: int) -> tuple[Event, str]:
        content = storage.read_bytes(self._event_place(number))
        try:
            event = Event(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise ValueError(f"event {number} of {self.place} is not readable: {error}") from error
        if event.number != number:
            raise ValueError(f"event {number} of {self.place} says that it is event {event.number}; a file was moved")
        return event, hashlib.sha256(content).hexdigest()

    def _event_place(self, number: int) -> str:
        return storage.join(self.place, _file(number))


def _file(number: int) -> str:
    return f"{number:08d}.json"


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a numeric user without an entry, as containers have
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
