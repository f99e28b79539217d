"""What models wrote by themselves, and how much of it stands in their training documents, beside held-out text."""

from __future__ import annotations

from pipeline.report.read import Json, Material


def share(counted: Json) -> float | None:
    """Return the share of the characters that are copied; None where there is no text."""
    return counted["copied_characters"] / counted["characters"] if counted["characters"] else None


def marked(text: str, parts: list[Json]) -> list[tuple[str, bool]]:
    """Return a text in pieces, each with whether it stands in training documents."""
    copied = [False] * len(text)
    for part in parts:
        copied[part["start"] : part["end"]] = [True] * (part["end"] - part["start"])
    pieces: list[tuple[str, bool]] = []
    for letter, is_copied in zip(text, copied, strict=True):
        if pieces and pieces[-1][1] == is_copied:
            pieces[-1] = (pieces[-1][0] + letter, is_copied)
        else:
            pieces.append((letter, is_copied))
    return pieces


def samples(material: Material) -> list[Json]:
    """Return per model its samples with what is copied in them, the shares of both kinds of text, and more counts."""
    return [
        {
            "model": file.content["model"],
            "link": file.link,
            "minimum_characters": file.content["minimum_characters"],
            "minimum_letters": file.content.get("minimum_letters"),
            "written": file.content["written"] | {"share": share(file.content["written"])},
            "held_out": file.content["held_out"] | {"share": share(file.content["held_out"])},
            "memorization": file.content.get("memorization"),
            "rows": [
                row | {"pieces": marked(row["continuation"], row["parts"]), "share": share(_counted(row))}
                for row in file.content["samples"]
            ],
        }
        for file in material.samples
    ]


def _counted(row: Json) -> Json:
    return {"characters": len(row["continuation"]), "copied_characters": row["copied_characters"]}
