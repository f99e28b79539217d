"""A small corpus, its tokenizer and its token set of three shards."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.documents import FINAL_SCHEMA, id_hash
from pipeline.tokenizer import train
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens import index, shard
from pipeline.tokens.settings import IndexSettings, ShardSettings, TokenUse

TEXT = (
    "de polder ligt lager dan zee en wordt door gemalen droog gehouden het waterschap opent elke morgen een sluis "
    "the miller counted seventeen cows behind that dyke while nobody else was awake één café <|end_of_text|> 1953 's"
)
WORDS = TEXT.split()
SHARDS = 3
FRACTION = 0.2


def make_rows(count: int, language: str = "nl", seed: int = 1) -> list[dict[str, object]]:
    chosen = random.Random(f"{language}{seed}")
    names = [f"{language}/book.jsonl/{n}" for n in range(count)]
    return [
        {
            "id": name,
            "text": " ".join(chosen.choices(WORDS, k=chosen.randrange(80))),
            "language": language,
            "language_score": 1.0,
            "source": f"{language}_book",
            "license": "CC0-1.0" if language == "nl" else None,
            "id_hash": id_hash(name),
        }
        for name in names
    ]


def write_documents(path: Path, rows: list[dict[str, object]], row_group_size: int = 20) -> Path:
    rows = [{"cluster": row["id"], "cluster_size": 1, **row} for row in rows]
    ordered = sorted(rows, key=lambda row: (row["id_hash"], row["id"]))
    pq.write_table(pa.Table.from_pylist(ordered, FINAL_SCHEMA), path, row_group_size=row_group_size)
    return path


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("documents")
    return [write_documents(folder / f"{name}.parquet", make_rows(150, name)) for name in ("nl", "en")]


@pytest.fixture(scope="session")
def tokenizer(documents: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train.run(
        TrainSettings(vocabulary_size=320, validation_fraction=FRACTION),
        documents=documents,
        tokenizer=folder / "tokenizer.json",
        configuration=folder / "tokenizer_config.json",
    )
    return folder / "tokenizer.json"


def build(
    folder: Path,
    documents: list[Path],
    tokenizer: Path,
    shards: int = SHARDS,
    fraction: float = FRACTION,
    uses: Sequence[TokenUse] = (),
) -> Path:
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True)
    for number in range(shards):
        shard.run(
            ShardSettings(shard=number, shards=shards, validation_fraction=fraction),
            tokenizer=tokenizer,
            documents=documents,
            train=folder / "train" / f"{number}.arrow",
            validation=folder / "validation" / f"{number}.arrow",
        )
    index.run(
        IndexSettings(shards=shards, uses=[*uses]),
        train=sorted((folder / "train").iterdir()),
        validation=sorted((folder / "validation").iterdir()),
        index=folder / "index.json",
    )
    return folder / "index.json"


@pytest.fixture(scope="session")
def small_batches() -> None:
    """Record batches of some 300 tokens, so that a small corpus has many borders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "TOKENS_PER_BATCH", 300)
        patch.setattr(shard, "CHARACTERS_PER_ENCODING", 1000)
        yield


@pytest.fixture(scope="session")
def built(
    small_batches: None, documents: list[Path], tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return build(tmp_path_factory.mktemp("tokens") / "main", documents, tokenizer)


@pytest.fixture(scope="session")
def build_tokens(small_batches: None) -> Callable[..., Path]:
    return build


@pytest.fixture(scope="session")
def write() -> Callable[..., Path]:
    return write_documents
