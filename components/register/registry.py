"""The registry: every model ever registered, on a path or on gs://, and which of its versions is which.

    REGISTRY/NAME/vN/claim.json        who took the version for which content; exclusively created, first
    REGISTRY/NAME/vN/model/1/          the SavedModel; REGISTRY/NAME/vN/model is what KServe and TF Serving are pointed at
    REGISTRY/NAME/vN/model-card.md     for people
    REGISTRY/NAME/vN/model-card.json   digests, lineage, metrics; written last, so that its presence means "whole"
    REGISTRY/NAME/log/                 the audit log, whose newest event holds the aliases (see audit)

Nothing is ever overwritten or removed. Two alias moves rule a model's life: `register` sets candidate, `promote` moves
champion and previous.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paraserve.components import storage
from paraserve.components.register import audit
from paraserve.components.register.audit import AuditLog, Event
from paraserve.components.register.card import to_markdown
from paraserve.components.register.content import SAVED_MODEL, digest_of, files_of

MAX_NAME = 40
"""KServe makes `NAME-predictor-NAMESPACE` of a name, which must not exceed 63 characters."""
SERVED = "1"
"""The one numeric folder below a version's `model`, as TF Serving wants it."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VERSION = re.compile(r"v[1-9][0-9]*")
_CLAIM, _CARD, _CARD_TEXT = "claim.json", "model-card.json", "model-card.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredVersion:
    """A version of a model, whole and immutable."""

    name: str
    version: str
    """v1, v2, and so on; a number may be left out where a registration died and was not repeated."""
    uri: str
    """The version's folder."""
    model_uri: str
    """What a model server is pointed at: a folder that holds the SavedModel in one numeric folder."""
    created: bool = False
    """Whether this call made it; False when it was found, or finished where an earlier attempt had died."""

    @property
    def saved_model(self) -> str:
        """The SavedModel's own folder."""
        return storage.join(self.model_uri, SERVED)


def check_name(name: str) -> None:
    """Raises ValueError for a model name that KServe, or a folder, could not carry."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"model name '{name}' ({len(name)} characters) cannot be served; use small letters, digits and -, "
            f"a letter first, no - last, at most {MAX_NAME} characters"
        )


class Registry:
    """The registry at `place`, a path or gs:// address; it need not exist."""

    def __init__(self, place: str):
        if not place:
            raise ValueError("no registry was given; set `registry` to a path or a gs:// address")
        # A relative path would mean another place to the server that is started later.
        self.place = place if "://" in place else str(Path(place).absolute())

    def names(self) -> list[str]:
        """The models that have a version, sorted."""
        return [name for name in storage.list_names(self.place) if _NAME.fullmatch(name) and self.versions(name)]

    def versions(self, name: str) -> list[str]:
        """The whole versions of a model, oldest first; none for an unknown model."""
        return [v for v in self._claimed(name) if storage.exists(self._place(name, v, _CARD))]

    def get(self, name: str, version: str) -> RegisteredVersion:
        """Raises ValueError when there is no such version, or it is not whole."""
        check_name(name)
        if not (_VERSION.fullmatch(version) and storage.exists(self._place(name, version, _CARD))):
            there = ", ".join(self.versions(name)) or "none"
            raise ValueError(f"the registry {self.place} has no version '{version}' of model '{name}'; it has: {there}")
        return self._version(name, version, created=False)

    def card(self, name: str, version: str) -> dict[str, Any]:
        """The model card. Raises ValueError when there is no such version."""
        self.get(name, version)
        card: dict[str, Any] = json.loads(storage.read_bytes(self._place(name, version, _CARD)))
        return card

    def aliases(self, name: str) -> dict[str, str]:
        """The version behind each of candidate, champion and previous; those that are not set are left out."""
        return {alias: version for alias, version in self._log(name).aliases().items() if version}

    def history(self, name: str) -> tuple[Event, ...]:
        """The audit log, oldest first."""
        return self._log(name).events()

    def verify_log(self, name: str) -> None:
        """Raises ValueError when the audit log was tampered with (see AuditLog.verify)."""
        self._log(name).verify()

    def register(self, name: str, model_folder: Path, card: Mapping[str, Any], run_id: str) -> RegisteredVersion:
        """Stores a SavedModel as a version, and makes it the candidate.

        The same content again (see content) is the same version, whether the earlier attempt finished or died; its model card
        stays the first one. Different contents get different versions, also when they race.

        Args:
            card: what the model card says beside name, version and files; JSON values, finite numbers.

        Raises:
            ValueError: a bad name, or a folder that holds no SavedModel.
            OSError: the registry cannot be written; nothing was copied then.
        """
        check_name(name)
        files = files_of(model_folder)
        digest = digest_of(files)
        with _write_errors(self.place):
            version, created = self._claim(name, digest, run_id)
            if not storage.exists(self._place(name, version, _CARD)):
                storage.upload_folder(model_folder, self._place(name, version, "model", SERVED), last=SAVED_MODEL)
                content = {"content_digest": digest, "files": [dataclasses.asdict(f) for f in files]}
                self._write_card(name, version, {**content, **card})
            reason = "new content" if created else "the same content again"
            self._log(name).append(audit.REGISTERED, version, run_id=run_id, reason=reason)
        return self._version(name, version, created)

    def promote(self, name: str, version: str, *, run_id: str, reason: str) -> None:
        """Makes a version the champion and the old champion `previous`. Promoting the champion changes nothing.

        Raises ValueError when there is no such version, OSError when the registry cannot be written.
        """
        self.get(name, version)
        with _write_errors(self.place):
            self._log(name).append(audit.PROMOTED, version, run_id=run_id, reason=reason)

    def _claim(self, name: str, digest: str, run_id: str) -> tuple[str, bool]:
        """The version of this content, and whether this call took it."""
        while True:
            claims = self._claims(name)
            for version, claim in claims.items():
                if claim["content_digest"] == digest:
                    return version, False
            version = f"v{max((int(v[1:]) for v in claims), default=0) + 1}"
            claim = {"content_digest": digest, "run_id": run_id}
            if storage.create_exclusive(self._place(name, version, _CLAIM), json.dumps(claim, indent=1).encode()):
                return version, True

    def _claims(self, name: str) -> dict[str, dict[str, str]]:
        versions = self._claimed(name)
        with ThreadPoolExecutor(16) as pool:  # on gs:// each is a round trip
            claims = pool.map(lambda version: self._read_claim(name, version), versions)
            return {version: claim for version, claim in zip(versions, claims, strict=True) if claim}

    def _read_claim(self, name: str, version: str) -> dict[str, str] | None:
        try:
            claim: dict[str, str] = json.loads(storage.read_bytes(self._place(name, version, _CLAIM)))
        except FileNotFoundError:  # on a path a folder stands there a moment before its claim does
            return None
        return claim

    def _claimed(self, name: str) -> list[str]:
        found = [v for v in storage.list_names(storage.join(self.place, name)) if _VERSION.fullmatch(v)]
        return sorted(found, key=lambda v: int(v[1:]))

    def _write_card(self, name: str, version: str, card: Mapping[str, Any]) -> None:
        whole = {"name": name, "version": version, **card}
        storage.create_exclusive(self._place(name, version, _CARD_TEXT), to_markdown(whole).encode())
        content = json.dumps(whole, indent=1, allow_nan=False).encode()
        storage.create_exclusive(self._place(name, version, _CARD), content)

    def _version(self, name: str, version: str, created: bool) -> RegisteredVersion:
        uri = self._place(name, version)
        model_uri = storage.join(uri, "model")
        return RegisteredVersion(name=name, version=version, uri=uri, model_uri=model_uri, created=created)

    def _place(self, name: str, version: str, *parts: str) -> str:
        return storage.join(self.place, name, version, *parts)

    def _log(self, name: str) -> AuditLog:
        check_name(name)
        return AuditLog(storage.join(self.place, name, "log"))


@contextlib.contextmanager
def _write_errors(place: str) -> Iterator[None]:
    """Says what to do about a registry that cannot be written; on gs:// too, whose errors are not OSErrors."""
    try:
        yield
    except _storage_errors() as error:
        raise OSError(
            f"cannot write to the registry {place}: {error}; give this step's user (on gs:// its service account) write "
            "permission and room there, or set `registry` to another place"
        ) from error


def _storage_errors() -> tuple[type[Exception], ...]:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    return OSError, GoogleAPICallError, GoogleAuthError
