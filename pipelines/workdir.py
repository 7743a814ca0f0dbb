"""The folder of `paraserve run`, and what stands in it.

DIR/result.json   the last run's result          DIR/shards, snapshots, registry, serving, runs   the default places
DIR/report.html   its evaluation report          DIR/artifacts/RUN_ID   what kfp keeps of a run's steps
DIR/.paraserve    says that the folder is ours   DIR/.paraserve/lock    held while a run goes on
                                                 DIR/.paraserve/tmp     temporary files, there while a run goes on

Nothing else in DIR is ever removed or overwritten, and a folder with files that is not ours is not taken at all.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paraserve.components import run_folder, storage
from paraserve.components.finish.finish import clear_leftovers
from paraserve.components.finish.result import to_json

PLACES = {"shards": "shards", "snapshots": "snapshots", "registry": "registry", "serving": "serving", "run_folder": "runs"}
"""The pipeline parameters that are places, and their folders here."""
_WRITTEN = ("shards", "snapshots", "registry", "runs", "artifacts")
"""Our folders whose writers end with the run; the endpoint lives on, and writes in `serving`."""


class Busy(Exception):
    """Another run goes on in the folder."""


@dataclass(frozen=True, slots=True)
class Workdir:
    """The folder of `paraserve run`."""

    path: Path
    """Absolute."""

    @property
    def places(self) -> dict[str, str]:
        """The default places, by parameter."""
        return {name: str(self.path / folder) for name, folder in PLACES.items()}

    @staticmethod
    def absolute_places(values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with their places made absolute: the endpoint outlives the run and its working directory."""
        local = {name: values[name] for name in PLACES if "://" not in values[name]}
        return {**values, **{name: str(Path(place).absolute()) for name, place in local.items()}}

    @property
    def marker(self) -> Path:
        """The folder that tells a working folder from any other."""
        return self.path / ".paraserve"

    @property
    def temporary(self) -> Path:
        return self.marker / "tmp"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def artifacts(self, run_id: str) -> Path:
        return self.path / "artifacts" / run_id

    def artifact(self, run_id: str, step: str, output: str) -> Path | None:
        """What a step left under an output's name; None when there is nothing."""
        return next(self.artifacts(run_id).glob(f"*/{step}/{output}"), None)

    def check(self) -> None:
        """Raises ValueError for a folder that holds anything but runs: its files must not get mixed with ours."""
        if self.marker.is_dir() or not self.path.exists():
            return
        if not self.path.is_dir():
            raise ValueError(f"--workdir {self.path} is a file; name a folder")
        if any(self.path.iterdir()):
            raise ValueError(f"--workdir {self.path} holds files that are not of `paraserve run`; name a new or empty folder")

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Holds the folder, and yields the lock's file descriptor. Raises Busy while a living process holds it."""
        self.marker.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.marker / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Busy(f"another `paraserve run` goes on in {self.path}; wait for it, or give another --workdir") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Removes what the last run left: its result, which is no longer the last run's, and leftovers if it was killed."""
        for path in (self.result, self.report):
            path.unlink(missing_ok=True)
        self.clear()
        self.temporary.mkdir()

    def clear(self) -> None:
        """Removes temporary files, and none outside the folder. Only for the holder of the lock."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        for folder in (self.path / name for name in _WRITTEN):
            if not folder.is_symlink():
                clear_leftovers(str(folder))

    def finish(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Keeps what the run's steps finished, its report and its result."""
        self._drop_unfinished(run_id, result["steps"])
        report = self.artifact(run_id, "evaluate", "report")
        if report is not None:
            shutil.copyfile(report, self.report)
        whole = self.temporary / self.result.name
        storage.write_bytes(str(whole), to_json(result))
        whole.replace(self.result)
        self.clear()

    def _drop_unfinished(self, run_id: str, steps: Mapping[str, Any]) -> None:
        for folder in self.artifacts(run_id).glob("*/*"):
            if steps.get(folder.name, {}).get("state") != run_folder.SUCCEEDED:
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (*self.artifacts(run_id).glob("*"), self.artifacts(run_id)):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
