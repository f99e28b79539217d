"""Numbers with their nouns, as a sentence has them."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
