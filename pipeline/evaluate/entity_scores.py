"""Named entities: the JSON that a prompt shows, the tags that a written answer stands for, and counts for F1.

Prompts and tags are those of EuroEval, whose decoder is constrained to JSON; here an answer may be none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Names = Mapping[str, str]
"""The type of each kind of entity, such as `per`, by its name in prompts, in their order."""
JSON_OBJECT = re.compile(r"\{[^{}]*\}")
LEFT_OUT = "misc"
"""The type without a meaning of its own, which `entity_f1_no_misc` does not count."""


def serialize_entities(tokens: Sequence[str], tags: Sequence[Any], names: Names) -> str:
    """Return the entities of a sentence as JSON: a list for each name, by tags such as `B-PER`, `I-PER` and `O`."""
    entities_by_name: dict[str, list[str]] = {name: [] for name in names}
    name_of = {kind: name for name, kind in names.items()}
    for token, tag in zip(tokens, tags, strict=True):
        mark, _, kind = str(tag).lower().partition("-")
        if kind not in name_of:
            continue
        entities = entities_by_name[name_of[kind]]
        if mark == "b":
            entities.append(token)
        elif entities:
            entities[-1] += f" {token}"
    return json.dumps(entities_by_name, ensure_ascii=False)


def tags_from_json_answer(text: str, tokens: Sequence[str], names: Names) -> list[str]:
    """Return the tags of tokens by the first JSON object in a text, as EuroEval marks them; without one, all are `o`.

    The first word of an entity marks each token that contains it, each further word those that follow such a token.
    """
    tags = ["o"] * len(tokens)
    match = JSON_OBJECT.search(text)
    try:
        answer = json.loads(match.group()) if match else {}
    except ValueError:
        answer = {}
    for name, entities in answer.items():
        if name not in names or not isinstance(entities, list):
            continue
        for entity in map(str, entities):
            for place, word in enumerate(entity.split()):
                for number, token in enumerate(tokens):
                    if word not in token:
                        continue
                    if place == 0:
                        tags[number] = f"b-{names[name]}"
                    elif tags[number] == "o" and tags[number - 1][2:] == names[name]:
                        tags[number] = f"i-{names[name]}"
    return tags


def find_entities(tags: Sequence[Any], without: str | None = None) -> set[tuple[str, int, int]]:
    """Return type, first and last token of each entity, without one type; `I-` after another type begins one."""
    entities: list[tuple[str, int, int]] = []
    before = ""
    for number, tag in enumerate(tags):
        mark, _, kind = str(tag).lower().partition("-")
        kind = "" if kind == without else kind
        if kind and mark == "i" and kind == before:
            entities[-1] = (kind, entities[-1][1], number)
        elif kind:
            entities.append((kind, number, number))
        before = kind
    return {*entities}


def count_entities(text: str, fields: Mapping[str, Any], names: Names, without: str | None) -> tuple[int, int, int]:
    """Return how many entities of an answer are right in type and place, how many it has, and how many there are.

    Args:
        fields: the item, with its `tokens` and their `labels`.
    """
    written = find_entities(tags_from_json_answer(text, fields["tokens"], names), without)
    real = find_entities(fields["labels"], without)
    return len(written & real), len(written), len(real)
