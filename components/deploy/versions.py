"""Which version a server serves: the highest that loads, looked for again and again, swapped while requests go on."""

import logging
import threading
from pathlib import Path

from paraserve.components.deploy.servable import Servable, Unknown

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5


class Versions:
    """The versions of one model below `base`: numeric folders, each put there whole (renamed into place)."""

    def __init__(self, name: str, base: Path):
        self.name, self.base = name, base
        self.failed: dict[int, str] = {}
        """Versions that did not load, with the reason; looked at once."""
        self._lock = threading.Lock()
        self._current: Servable | None = None
        self.scan()
        if self._current is None:
            reasons = "; ".join(f"version {v}: {reason}" for v, reason in self.failed.items())
            raise ValueError(f"no version of {name} in {base} can be served: {reasons or 'it has no numeric folder'}")

    def scan(self) -> None:
        """Loads the highest version that is on disk, unless it serves already or has failed before."""
        with self._lock:
            for version in sorted(self._on_disk() - self.failed.keys(), reverse=True):
                if self._current is not None and version == self._current.version:
                    return
                if self._load(version):
                    return

    def change_base(self, base: Path) -> None:
        """Serves from another folder. Raises ValueError, and serves on as before, when that has no good version."""
        fresh = Versions(self.name, base)
        with self._lock:
            self.base, self.failed, self._current = base, fresh.failed, fresh.current

    def get(self, name: str, version: int | None) -> Servable:
        """The servable of that name and version, None for the one that serves. Raises Unknown."""
        current = self.current
        if name != self.name:
            raise Unknown(f"there is no model '{name}' here; ask for '{self.name}'")
        if version is not None and version != current.version:
            raise Unknown(f"version {version} of '{name}' is not loaded; {current.version} is")
        return current

    @property
    def current(self) -> Servable:
        assert self._current is not None, "the constructor did not load a version"
        return self._current

    def watch(self, stop: threading.Event) -> None:
        """Scans until `stop` is set."""
        while not stop.wait(POLL_SECONDS):
            self.scan()

    def _on_disk(self) -> set[int]:
        return {int(p.name) for p in self.base.glob("*") if p.name.isdecimal() and p.is_dir()}

    def _load(self, version: int) -> bool:
        try:
            # The old one goes when its last request lets go of it.
            self._current = Servable(self.base / str(version))
        except Exception as error:  # TensorFlow raises nearly anything for a damaged model; the old version must serve on
            self.failed[version] = f"{type(error).__name__}: {error}"
            log.error("version %d of %s does not load: %s", version, self.name, self.failed[version])
            return False
        log.info("serving version %d of %s", version, self.name)
        return True
