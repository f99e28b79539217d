"""Sentences for a person: numbers with their nouns, and nothing in them that a terminal obeys."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text on one line, in which line ends and control characters of names are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
