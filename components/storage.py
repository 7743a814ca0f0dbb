"""One way to list, read and write files on a path (local disk, NFS) and on gs://.

Every function takes a *place*: a path or a gs:// address. Writes are atomic: a reader sees the old content or the new, never a
part. gs:// goes through google-cloud-storage with the environment's credentials; with STORAGE_EMULATOR_HOST set it talks to
that emulator without any.
"""

import contextlib
import errno
import fnmatch
import functools
import glob
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

GCS = "gs://"
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space, or choose another place",
    errno.EDQUOT: "the quota is used up: free some space, or choose another place",
    errno.EFBIG: "a file may not grow further: raise the limit on file sizes",
    errno.EACCES: "give this user the right to write there, or choose another place",
    errno.EPERM: "give this user the right to write there, or choose another place",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.ENOTDIR: "a part of it is a file: choose another place",
}


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file that `list_files` found."""

    place: str
    size: int
    """Bytes."""
    version: str
    """Changes when the content does: modification time in ns on a path, the object's generation on gs://."""


def join(place: str, *parts: str) -> str:
    """`place` with `parts` below it."""
    return "/".join([place.rstrip("/") or "/", *(part.strip("/") for part in parts)])


def list_files(pattern: str) -> list[FileInfo]:
    """The files that `pattern` names, sorted: one file, a glob (`*`, `?`, `[]`, `**`), or every file in a folder.

    Hidden files and empty matches are left out; nothing found is an empty list.
    """
    return _backend(pattern).list_files(pattern)


def exists(place: str) -> bool:
    """Whether there is a file, or on a path a folder."""
    return _backend(place).exists(place)


def open_input(place: str) -> BinaryIO:
    """Opens a file for reading in binary. Raises FileNotFoundError."""
    return _backend(place).open_input(place)


def read_bytes(place: str) -> bytes:
    """The whole content. Raises FileNotFoundError."""
    with open_input(place) as file:
        return file.read()


def write_bytes(place: str, content: bytes) -> None:
    """Writes a whole file, in place of what was there; folders above it are made."""
    _backend(place).write(place, content)


def create_exclusive(place: str, content: bytes) -> bool:
    """Writes a whole file unless it exists; returns whether this call made it. Of racing calls exactly one does.

    On a path this is a hard link to a finished temporary file, which needs no lock and holds on NFS too; on gs:// it is the
    precondition ifGenerationMatch=0.
    """
    return _backend(place).create_exclusive(place, content)


def list_names(place: str) -> list[str]:
    """Names directly below a folder, sorted; a folder's and a file's alike. A missing folder has none."""
    return _backend(place).list_names(place)


def upload_folder(local: Path, place: str, last: str) -> None:
    """Copies a folder to `place`, the file `last` after all others, so that its presence says that the folder is whole.

    On a path the copy is made under a temporary name and renamed, so that it appears at once. A folder that is whole already
    is left as it is; one that is not is completed (gs://) or replaced (path).
    """
    _backend(place).upload_folder(local, place, last)


def is_path(place: str) -> bool:
    """Whether the file system itself reads `place`; else it has to be downloaded first."""
    return not place.startswith(GCS)


def download(place: str, path: Path) -> None:
    """Copies a file to local disk. Raises FileNotFoundError, PermissionError, or OSError for what else went wrong."""
    _backend(place).download(place, path)


@contextlib.contextmanager
def local_folder(place: str) -> Iterator[Path]:
    """The folder at `place` on local disk: itself for a path, a temporary copy for gs://. Raises FileNotFoundError."""
    if not place.startswith(GCS):
        if not Path(place).is_dir():
            raise FileNotFoundError(f"there is no folder {place}")
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="paraserve-") as folder:
        _gcs().download_folder(place, Path(folder))
        yield Path(folder)


@contextlib.contextmanager
def local_file(place: str) -> Iterator[Path]:
    """The file at `place` on local disk: itself for a path, a temporary copy for gs://. Raises FileNotFoundError."""
    if not place.startswith(GCS):
        yield Path(place)
        return
    with tempfile.NamedTemporaryFile(prefix="paraserve-") as copy, open_input(place) as file:
        shutil.copyfileobj(file, copy)
        copy.flush()
        yield Path(copy.name)


def remove_folder(place: str) -> None:
    """Removes a folder and all below it; a missing one is fine."""
    _backend(place).remove_folder(place)


def check_writable(place: str) -> None:
    """Raises OSError when a folder cannot be made or written at a path, before any work; what gs:// allows shows only later."""
    if place.startswith(GCS):
        return
    existing = next(path for path in (Path(place).absolute(), *Path(place).absolute().parents) if path.exists())
    if not existing.is_dir():
        raise _explanation(place, errno.ENOTDIR)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _explanation(place, errno.EACCES)


@contextlib.contextmanager
def explained(place: str) -> Iterator[None]:
    """Turns an OSError of writing into one that says where it happened and what helps."""
    try:
        yield
    except OSError as error:
        raise _explanation(place, error.errno or errno.EIO) from error


def _explanation(place: str, number: int) -> OSError:
    remedy = _REMEDIES.get(number, "make the place writable, or choose another one")
    return OSError(number, f"cannot write to {place}: {os.strerror(number)}; {remedy}")


def sha256_of(path: Path) -> str:
    """sha256 of a local file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Backend(Protocol):
    def list_files(self, pattern: str) -> list[FileInfo]: ...
    def exists(self, place: str) -> bool: ...
    def open_input(self, place: str) -> BinaryIO: ...
    def write(self, place: str, content: bytes) -> None: ...
    def create_exclusive(self, place: str, content: bytes) -> bool: ...
    def list_names(self, place: str) -> list[str]: ...
    def download(self, place: str, path: Path) -> None: ...
    def upload_folder(self, local: Path, place: str, last: str) -> None: ...
    def remove_folder(self, place: str) -> None: ...


def _backend(place: str) -> _Backend:
    if place.startswith(GCS):
        return _gcs()
    if "://" in place:
        raise ValueError(f"cannot read or write '{place}': only paths and gs:// addresses are supported")
    if not place:
        raise ValueError("an empty place was given; set it to a path or a gs:// address")
    return _PathBackend()


class _PathBackend:
    def list_files(self, pattern: str) -> list[FileInfo]:
        path = Path(pattern)
        if path.is_dir():
            found = [p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        elif path.is_file():
            found = [path]
        else:
            found = [Path(p) for p in glob.glob(pattern, recursive=True)]  # noqa: PTH207 - absolute patterns
        files = sorted(p for p in found if p.is_file())
        return [FileInfo(str(p), p.stat().st_size, str(p.stat().st_mtime_ns)) for p in files]

    def exists(self, place: str) -> bool:
        return Path(place).exists()

    def open_input(self, place: str) -> BinaryIO:
        return Path(place).open("rb")

    def write(self, place: str, content: bytes) -> None:
        with self._written(Path(place), content) as temporary:
            temporary.replace(place)

    def create_exclusive(self, place: str, content: bytes) -> bool:
        with self._written(Path(place), content) as temporary:
            try:
                os.link(temporary, place)
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def _written(self, path: Path, content: bytes) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def list_names(self, place: str) -> list[str]:
        path = Path(place)
        return sorted(p.name for p in path.iterdir() if not p.name.startswith(".")) if path.is_dir() else []

    def download(self, place: str, path: Path) -> None:
        shutil.copyfile(place, path)

    def upload_folder(self, local: Path, place: str, last: str) -> None:
        target = Path(place)
        if (target / last).exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            _copy_files(local, temporary)
            self._replace_folder(temporary, target, last)
        except OSError:
            if not (target / last).exists():  # else another writer of the same content was first
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _replace_folder(self, new: Path, target: Path, last: str) -> None:
        try:
            new.rename(target)
        except OSError:
            # Only a folder that is not whole gives way: another writer may have finished while this one was copying.
            if not target.is_dir() or (target / last).exists():
                raise
            shutil.rmtree(target)
            new.rename(target)

    def remove_folder(self, place: str) -> None:
        shutil.rmtree(place, ignore_errors=True)


class _GcsBackend:
    def __init__(self) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        emulated = "STORAGE_EMULATOR_HOST" in os.environ
        self.client = storage.Client(project="none", credentials=AnonymousCredentials()) if emulated else storage.Client()

    def list_files(self, pattern: str) -> list[FileInfo]:
        bucket, name = _split(pattern)
        fixed = name[: min((name.find(c) for c in "*?[" if c in name), default=len(name))]
        folder = name.rstrip("/") + "/"
        found = []
        for blob in self.client.list_blobs(bucket, prefix=fixed):
            wanted = blob.name == name or (blob.name.startswith(folder) if fixed == name else _glob_match(blob.name, name))
            if wanted and not blob.name.endswith("/"):
                found.append(FileInfo(f"{GCS}{bucket}/{blob.name}", blob.size, str(blob.generation)))
        return sorted(found, key=lambda info: info.place)

    def exists(self, place: str) -> bool:
        return bool(self._blob(place).exists())

    def open_input(self, place: str) -> BinaryIO:
        if not self.exists(place):  # the reader itself would only say so at its first read
            raise FileNotFoundError(f"there is no object {place}")
        file: BinaryIO = self._blob(place).open("rb")
        return file

    def write(self, place: str, content: bytes) -> None:
        self._blob(place).upload_from_string(content, content_type="application/octet-stream")

    def create_exclusive(self, place: str, content: bytes) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        try:
            self._blob(place).upload_from_string(content, content_type="application/octet-stream", if_generation_match=0)
        except PreconditionFailed:
            return False
        return True

    def list_names(self, place: str) -> list[str]:
        bucket, name = _split(place)
        prefix = name.rstrip("/") + "/" if name else ""
        blobs = self.client.list_blobs(bucket, prefix=prefix, delimiter="/")
        names = [blob.name for blob in blobs] + list(blobs.prefixes)
        return sorted({n.removeprefix(prefix).rstrip("/") for n in names} - {""})

    def download(self, place: str, path: Path) -> None:
        with _read_errors(place):
            self._blob(place).download_to_filename(str(path))

    def upload_folder(self, local: Path, place: str, last: str) -> None:
        if self.exists(join(place, last)):
            return
        files = sorted((p for p in local.rglob("*") if p.is_file()), key=lambda p: (str(p.relative_to(local)) == last, p))
        for path in files:
            self._blob(join(place, path.relative_to(local).as_posix())).upload_from_filename(str(path))

    def download_folder(self, place: str, local: Path) -> None:
        bucket, name = _split(place)
        prefix = name.rstrip("/") + "/"
        found = False
        for blob in self.client.list_blobs(bucket, prefix=prefix):
            path = local / blob.name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(str(path))
            found = True
        if not found:
            raise FileNotFoundError(f"there is no folder {place}")

    def remove_folder(self, place: str) -> None:
        bucket, name = _split(place)
        for blob in self.client.list_blobs(bucket, prefix=name.rstrip("/") + "/"):
            blob.delete()

    def _blob(self, place: str) -> Any:
        bucket, name = _split(place)
        return self.client.bucket(bucket).blob(name)


@functools.cache
def _gcs() -> _GcsBackend:
    return _GcsBackend()


# A forked process must not speak on its parent's connections.
os.register_at_fork(after_in_child=_gcs.cache_clear)


@contextlib.contextmanager
def _read_errors(place: str) -> Iterator[None]:
    """Turns what the client library raises into OSErrors that name the place."""
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption

    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(f"there is no object {place}") from error
    except (Forbidden, Unauthorized, GoogleAuthError) as error:
        raise PermissionError(
            f"{place} may not be read by this machine's account ({error}); give it the right to read the bucket"
        ) from error
    except (GoogleAPIError, DataCorruption) as error:
        raise OSError(f"cannot read {place}: {error}") from error


def _copy_files(source: Path, target: Path) -> None:
    """Copies what files hold: their modes are the local machine's business (an artifact store may have made them 0600)."""
    for path in [source, *source.rglob("*")]:
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        else:
            shutil.copyfile(path, copy)


def _split(place: str) -> tuple[str, str]:
    bucket, _, name = place.removeprefix(GCS).partition("/")
    if not bucket:
        raise ValueError(f"'{place}' names no bucket; write gs://BUCKET/NAME")
    return bucket, name


def _glob_match(name: str, pattern: str) -> bool:
    """Whether an object's name matches a glob as a path would: `*` stays within a folder, `**` does not."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(name, pattern)
    names, patterns = name.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(fnmatch.fnmatchcase(n, p) for n, p in zip(names, patterns, strict=True))
