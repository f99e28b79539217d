"""The errors that a sentence can cure, the end that was asked for, their exit codes, and sentences without names."""

import errno
import getpass
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.formatting import escape_to_one_line


class InputError(Exception):
    """A problem of the input or the settings, told in one sentence that names the file or field and the way out."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentences = [escape_to_one_line(sentence)]

    def __str__(self) -> str:
        return escape_to_one_line(super().__str__())


class InputErrors(InputError):
    """Several problems of the input or the settings, each told in one sentence."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = [escape_to_one_line(sentence) for sentence in sentences]


class Superseded(InputError):
    """A later start of the same step has taken over; nothing of it was touched, and it is of no use to start again."""


class OutOfMemory(InputError):
    """A training does not fit the memory of its processes; the sentence tells what would."""


class Diverged(RuntimeError):
    """A training went on to no finite loss, or to none that is not far above what it was, whatever was left out."""


class Stopped(Exception):
    """A step was asked to stop, has kept what it had done, and continues when it is started again."""


class DiskFull(OSError):
    """A disk is full or a quota is used up; the message is one sentence that names the folder and the way out."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.ENOSPC, sentence)

    def __str__(self) -> str:
        return escape_to_one_line(str(self.strerror))


EXIT_TEMPORARY_FAILURE = 75
"""The exit code of `Stopped`, EX_TEMPFAIL of sysexits.h."""
EXIT_DISK_FULL = 74
"""The exit code where a disk or a quota is full, EX_IOERR of sysexits.h: it goes on when there is room."""


def anonymize_paths(text: str) -> str:
    """Return the text without the home directory and the name of the user."""
    text = text.replace(str(Path.cwd()) + "/", "").replace(str(Path.home()), "~")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in some containers
        return text
    return text if user == "root" else text.replace(f"/{user}/", "/USER/")
