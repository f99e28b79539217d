"""The one error that a user can cause and a sentence can cure."""


class InputError(Exception):
    """A problem of the input or the settings, told in one sentence that names the file or field and the way out."""
