"""Errors that Polder reports in one sentence, their exit codes, and text without personal paths."""

import difflib
import errno
import getpass
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.core.display_text import escape_to_one_line


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown name: the nearest known one, else all."""
    names = sorted(known)
    near = difflib.get_close_matches(name.casefold(), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names) or 'none'}"


class InputError(Exception):
    """A user's mistake in input or settings; the message is one sentence with the file or field and the fix."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentences = [escape_to_one_line(sentence)]

    def __str__(self) -> str:
        return escape_to_one_line(super().__str__())


class InputErrors(InputError):
    """Several problems of the input or the settings, each in one sentence."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = [escape_to_one_line(sentence) for sentence in sentences]


class Superseded(InputError):
    """A later run of the same job owns its outputs; this run has changed nothing and must not be repeated."""


class OutOfMemory(InputError):
    """A training does not fit into memory; the message says which settings would."""


class Diverged(RuntimeError):
    """The loss of a training stays non-finite or far above its level, whichever batches are skipped."""


class Stopped(Exception):
    """A step stopped on request; it saved its state and continues when it is started again."""


class DiskFull(OSError):
    """A disk or quota is full; the message is one sentence with the folder and the fix."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.ENOSPC, sentence)

    def __str__(self) -> str:
        return escape_to_one_line(str(self.strerror))


EXIT_TEMPORARY_FAILURE = 75
"""The exit code of `Stopped`, EX_TEMPFAIL of sysexits.h."""
EXIT_DISK_FULL = 74
"""The exit code for a full disk or quota, EX_IOERR of sysexits.h."""


def anonymize_paths(text: str) -> str:
    """Return a text without the user's home directory and name."""
    text = text.replace(str(Path.cwd()) + "/", "").replace(str(Path.home()), "~")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in some containers
        return text
    return text if user == "root" else text.replace(f"/{user}/", "/USER/")
