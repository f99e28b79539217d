"""The error that a user can cause and a sentence can cure, and the end that was asked for."""


class InputError(Exception):
    """A problem of the input or the settings, told in one sentence that names the file or field and the way out."""


class Stopped(Exception):
    """A step was asked to stop, has kept what it had done, and continues when it is started again."""


TRY_AGAIN = 75
"""The exit code for it, EX_TEMPFAIL of sysexits.h."""
