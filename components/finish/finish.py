"""What the finish step does."""

import re
from pathlib import Path

from paraserve.components import run_folder, storage
from paraserve.components.finish.result import write_result
from paraserve.components.finish.summary import summarise

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
"""See storage: `.NAME.UUID.tmp`."""


def finish_run(runs: str, state: str) -> None:
    """Writes the result of this process's run into its folder below `runs` and prints it; `state` is what Kubeflow says.

    Done again it writes the same.
    """
    folder = storage.join(runs, run_folder.run_id())
    result = write_result(folder)
    clear_leftovers(folder)
    print(f"the steps ended with state {state}; the result is in {folder}")
    print(summarise(result))


def clear_leftovers(place: str) -> None:
    """Removes the temporary files and folders below `place` that killed writers left, by the names that storage gives them.

    Only for a folder of our own that nobody writes to now. Object stores have none: their writes appear whole or not at all.
    """
    if storage.GCS in place:
        return
    for path in sorted(Path(place).rglob(".*.tmp")):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        if path.is_dir():
            storage.remove_folder(str(path))
        else:
            path.unlink(missing_ok=True)
