"""The folder of a user's own texts, which paths of a configuration name as `{data}`."""

from __future__ import annotations

from pipeline.core.errors import InputError

DATA = "{data}"


def with_data(what: str, path: str, data: str | None) -> str:
    """Return a path with the folder that `{data}` stands for in it; `what` names where the path was written.

    Raises:
        InputError: the path needs the folder, and none was given.
    """
    if DATA not in path:
        return path
    if data is None:
        raise InputError(
            f"{what}: its path {path} needs the folder: add --config data=FOLDER, or --data FOLDER to `python -m "
            "pipeline`"
        )
    return path.replace(DATA, data)
