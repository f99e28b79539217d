"""A small bilingual corpus with the columns of the corpus stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.documents import FINAL_SCHEMA, id_hash

DUTCH = (
    "De polder ligt lager dan de zee en wordt door gemalen droog gehouden. "
    "'s Morgens vroeg telde de molenaar {n} koeien in de wei achter de dijk, 's avonds nog {m}. "
    "Het waterschap besloot in 19{m} dat de sluizen van {n} tot {m} uur open zouden blijven. "
    "Foto's van de watersnood hangen in het gemeentehuis; één ervan is in zee gevonden."
)
ENGLISH = (
    "The polder lies below the sea and is kept dry by pumping stations. "
    "Early in the morning the miller counted {n} cows in the meadow behind the dyke, and {m} at night. "
    "In 19{m} the water board didn't decide whether the locks would stay open from {n} to {m}. "
    "Photographs of the flood hang in the town hall; they've been there for {n} years."
)


def make_rows(language: str, count: int) -> list[dict[str, object]]:
    text = {"nl": DUTCH, "en": ENGLISH}[language]
    return [
        {
            "id": f"{language}/book.jsonl/{n}",
            "text": text.format(n=n * 7 + 1, m=n % 50 + 40),
            "language": language,
            "language_score": 1.0,
            "source": f"{language}_book",
            "license": "CC0-1.0",
            "id_hash": id_hash(f"{language}/book.jsonl/{n}"),
        }
        for n in range(count)
    ]


@pytest.fixture
def write_documents(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, rows: list[dict[str, object]]) -> Path:
        path = tmp_path / f"{name}.parquet"
        rows = [{"cluster": row["id"], "cluster_size": 1, **row} for row in rows]
        ordered = sorted(rows, key=lambda row: (row["id_hash"], row["id"]))
        pq.write_table(pa.Table.from_pylist(ordered, FINAL_SCHEMA), path)
        return path

    return write


@pytest.fixture
def documents(write_documents: Callable[..., Path]) -> list[Path]:
    return [write_documents("nl", make_rows("nl", 120)), write_documents("en", make_rows("en", 120))]
