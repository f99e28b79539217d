"""A mirror of the data sets of the shipped suites, in their formats, with a few lines of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

Row = dict[str, Any]
OPTIONS = ("een", "twee", "drie", "vier")
MMLU = "abstract_algebra"
INCLUDED = "Arts & Humanities"


def _lettered(n: int) -> Row:
    return {f"option_{letter}": f"{option} {n}" for letter, option in zip("abcd", OPTIONS, strict=True)}


def _ending(n: int) -> Row:
    endings = [f"en gaat {option} keer weg." for option in OPTIONS]
    start = {"ctx_a": f"Een man loopt {n} meter.", "ctx_b": "hij", "activity_label": "Lopen"}
    return {**start, "ctx": f"Een man loopt {n} meter. hij", "endings": endings, "label": str(n % 4), "ind": n}


def _truth(n: int) -> tuple[str, list[str], list[int]]:
    return f"Hoe hoog is toren {n}?", [f"{n} meter", "Niemand weet het", f"{n + 1} meter"], [1, 0, 0]


def _truths(n: int) -> Row:
    question, choices, labels = _truth(n)
    targets = {
        f"{kind}_targets_{part}": result
        for kind in ("mc1", "mc2")
        for part, result in (("choices", choices), ("labels", labels))
    }
    return {"question": question, **targets}


def _nested_truths(n: int) -> Row:
    question, choices, labels = _truth(n)
    return {
        "question": question,
        **{f"{kind}_targets": {"choices": choices, "labels": labels} for kind in ("mc1", "mc2")},
    }


def _passage(n: int) -> Row:
    answers = {f"mc_answer{number}": option for number, option in enumerate(OPTIONS, 1)}
    return {
        "flores_passage": f"Er zijn {n} boten.",
        "question": "Hoeveel?",
        **answers,
        "correct_answer_num": str(n % 4 + 1),
    }


def _physical(n: int) -> Row:
    solutions = {f"solution{number}": f"Met {option} doeken." for number, option in enumerate(OPTIONS)}
    return {"prompt": f"Hoe droog je {n} borden?", **solutions, "label": n % 2}


def _question(n: int) -> Row:
    return {
        "id": str(n),
        "question": f"Wat is {n}?",
        "choices": {"text": [*OPTIONS], "label": [*"ABCD"]},
        "answerKey": "ABCD"[n % 4],
    }


def _pair(n: int) -> Row:
    return {"sentence_good": f"Zij loopt {n} meter.", "sentence_bad": f"Zij lopen loopt {n} meter."}


# By data set: its configurations, its splits, and line n of each.
DATA_SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[int], Row]]] = {
    "alexandrainst/m_arc": (
        ("nl",),
        ("train", "validation", "test"),
        lambda n: {
            "id": str(n),
            "instruction": f"Wat is {n}?",
            **_lettered(n),
            "option_e": None,
            "answer": "ABCD"[n % 4],
        },
    ),
    "alexandrainst/m_hellaswag": (("nl",), ("val",), _ending),
    "alexandrainst/m_mmlu": (
        ("nl",),
        ("train", "test"),
        lambda n: {"instruction": f"Wat is {n}?", **_lettered(n), "answer": "ABCD"[n % 4]},
    ),
    "alexandrainst/m_truthfulqa": (("nl",), ("val",), _truths),
    "facebook/belebele": (("nld_Latn", "eng_Latn"), ("test",), _passage),
    "jmichaelov/blimp_nl": (("adpositional_phrases__argument_r_extraction",), ("test",), _pair),
    "jumelet/multiblimp": (
        ("nld", "eng"),
        ("train",),
        lambda n: {"sen": f"Zij loopt {n} meter.", "wrong_sen": f"Zij lopen {n} meter."},
    ),
    "CohereForAI/Global-MMLU": (
        ("nl", "en"),
        ("dev", "test"),
        lambda n: {"question": f"Wat is {n}?", **_lettered(n), "answer": "ABCD"[n % 4], "subject": MMLU},
    ),
    "CohereForAI/include-base-44": (
        ("Dutch",),
        ("test",),
        lambda n: {"question": f"Wie is {n}?", **_lettered(n), "answer": n % 4, "domain": INCLUDED},
    ),
    "mrlbenchmarks/global-piqa-parallel": (("nld_latn", "eng_latn"), ("test",), _physical),
    "mrlbenchmarks/global-piqa-nonparallel": (("nld_latn", "eng_latn"), ("test",), _physical),
    "EleutherAI/lambada_multilingual_stablelm": (
        ("nl", "en"),
        ("test",),
        lambda n: {"text": f"Er kwamen {n} boten aan"},
    ),
    "EleutherAI/lambada_openai": (("default",), ("test",), lambda n: {"text": f"There came {n} boats in"}),
    "allenai/ai2_arc": (("ARC-Challenge",), ("train", "validation", "test"), _question),
    "Rowan/hellaswag": (("default",), ("train", "validation"), _ending),
    "cais/mmlu": (
        (MMLU,),
        ("dev", "test"),
        lambda n: {"question": f"What is {n}?", "choices": [*OPTIONS], "answer": n % 4, "subject": MMLU},
    ),
    "truthfulqa/truthful_qa": (("multiple_choice",), ("validation",), _nested_truths),
    "mteb/NTREX": (
        ("default",),
        ("test",),
        lambda n: {"nld_Latn": f"Er varen {n} boten.", "eng_Latn": f"There sail {n} boats.", "fra_Latn": "Non."},
    ),
    "nyu-mll/blimp": (("adjunct_island",), ("train",), _pair),
}


def write_mirror(folder: Path, lines: int) -> Path:
    """Write the data sets into a folder with the given number of lines per split, and return it."""
    for name, (configurations, splits, row) in DATA_SETS.items():
        listed = []
        for configuration in configurations:
            files = []
            for split in splits:
                path = folder / name / configuration / f"{split}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist([row(number) for number in range(lines)]), path)
                files.append({"split": split, "path": f"{configuration}/{split}.parquet"})
            listed.append({"config_name": configuration, "data_files": files})
        card = yaml.safe_dump(json.loads(json.dumps({"configs": listed})))
        (folder / name / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")
    return folder
