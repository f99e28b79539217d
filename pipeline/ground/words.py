"""What a person reads: numbers with their nouns, tables, and nothing in them that a terminal obeys."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text on one line, in which line ends and control characters of names are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def aligned(rows: list[list[str]]) -> list[str]:
    """Return rows as lines with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def in_blocks(rows: list[list[str]], width: int = 160) -> list[str]:
    """Return the same; columns that no line of so many characters has room for follow below, after the first one."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    blocks: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        if blocks[-1] and widths[0] + sum(widths[one] for one in blocks[-1]) + widths[column] - 2 > width:
            blocks.append([])
        blocks[-1].append(column)
    lines = [["", *aligned([[row[0], *(row[one] for one in block)] for row in rows])] for block in blocks]
    return [line for block in lines for line in block][1:]
