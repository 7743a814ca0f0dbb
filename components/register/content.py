"""What a model *is*, as far as the registry is concerned: the bytes of its files.

Two folders are the same content when they hold the same files with the same bytes; modes, times and empty folders do not
count, since an artifact store keeps none of them. One file is left out: `fingerprint.pb`, which carries a random id for every
export and says nothing that the others do not. A second export of the same weights is the same content only if TensorFlow
writes its graph and the description (run id included) byte for byte again; so a retried step is recognised, a new run is not.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from paraserve.components import storage

SAVED_MODEL = "saved_model.pb"
IGNORED = "fingerprint.pb"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """One file of a model."""

    file: str
    """Relative to the model's folder, with slashes."""
    bytes: int
    sha256: str


def files_of(model: Path) -> tuple[ModelFile, ...]:
    """The files that make the content of the SavedModel in `model`, sorted. Raises ValueError when it holds none."""
    if not (model / SAVED_MODEL).is_file():
        raise ValueError(f"{model} is no SavedModel (it holds no {SAVED_MODEL}); give the folder that train exported")
    names = sorted(p.relative_to(model).as_posix() for p in model.rglob("*") if p.is_file())
    return tuple(
        ModelFile(file=name, bytes=(model / name).stat().st_size, sha256=storage.sha256_of(model / name))
        for name in names
        if name != IGNORED
    )


def digest_of(files: tuple[ModelFile, ...]) -> str:
    """sha256, in hexadecimal, over the files' names and digests."""
    lines = "".join(f"{file.sha256}  {file.file}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def content_digest(model: Path) -> str:
    """The digest of the content of the SavedModel in `model`. Raises ValueError when it holds none."""
    return digest_of(files_of(model))
