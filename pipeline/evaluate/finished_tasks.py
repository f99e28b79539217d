"""Keep the results of finished tasks in files of the job's scratch folder, so that a killed evaluation continues."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pipeline.core.atomic_files import write_atomically
from pipeline.core.hashing import hash_each_file, hash_file
from pipeline.evaluate.item_results import MeasuredTask, hash_prompts

if TYPE_CHECKING:
    pass


class SuiteAnswers(NamedTuple):
    """The measured tasks of a model, the skipped tasks, and the revisions of mirrored data sets."""

    measured: list[MeasuredTask]
    not_asked: list[dict[str, Any]]
    data_sets: dict[str, str]


_ANSWERS_JSON = TypeAdapter(SuiteAnswers, config=ConfigDict(ser_json_inf_nan="constants"))


def encode_answers(asked: SuiteAnswers) -> bytes:
    """Encode results as JSON without loss of digits."""
    return _ANSWERS_JSON.dump_json(asked)


def decode_answers(content: bytes) -> SuiteAnswers:
    """Decode results of `encode_answers`.

    Raises:
        ValueError: the content is anything else.
    """
    return _ANSWERS_JSON.validate_json(content)


class FinishedTasks:
    """The files of finished tasks in a folder, each named by a hash of everything that its results depend on.

    Args:
        folder: the scratch folder of the job; None keeps nothing.
        model: the model's folder, in the layout of Hugging Face.
        conditions: all other dependencies: settings, versions of code and environment, kind of device.
    """

    def __init__(self, folder: Path | None = None, model: Path | None = None, conditions: Sequence[Any] = ()) -> None:
        self.folder = folder
        self._sha256: dict[Path, str] = {}
        if folder and model:
            files = sorted(path for path in model.iterdir() if path.is_file())
            hashes = zip((path.name for path in files), hash_each_file(files), strict=True)
            self._conditions = [*conditions, dict(hashes)]

    def compute_key(self, task: Sequence[Any], files: Sequence[Path]) -> str:
        """Return the hash of a task: of its suite and name, and of the files that it reads."""
        for path in files:
            if path not in self._sha256:
                self._sha256[path] = hash_file(path)
        return hash_prompts([self._conditions, task, sorted((path.name, self._sha256[path]) for path in files)])

    def read(self, key: str) -> SuiteAnswers | None:
        """Return the results of a task; None if there are none, or they are damaged."""
        assert self.folder
        try:
            sha256, _, content = (self.folder / f"{key}.json").read_bytes().partition(b"\n")
            return decode_answers(content) if sha256 == hashlib.sha256(content).hexdigest().encode() else None
        except (OSError, ValidationError):
            return None

    def write(self, key: str, content: bytes) -> None:
        """Write the encoded results of a task.

        Raises:
            DiskFull: the disk has no space for them.
        """
        assert self.folder
        write_atomically(self.folder / f"{key}.json", hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
