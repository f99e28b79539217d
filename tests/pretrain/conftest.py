"""A small token set in the format of the tokens stage, and the segments that train on it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.documents import FINAL_SCHEMA, id_hash
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokenizer import train as tokenizer_step
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens import index as index_step
from pipeline.tokens import shard as shard_step
from pipeline.tokens.settings import IndexSettings, ShardSettings
from tests import warm_python

WORDS = ["de", "het", "een", "van", "in", "is", "dat", "op", "te", "zijn", "met", "voor", "niet", "er", "om", "ook"]


@pytest.fixture(scope="module")
def warm_processes() -> Iterator[None]:
    """Fork each `python -m MODULE` of a file's tests from a Python that has imported torch.

    `python -c` and scripts remain new processes.
    """
    client, variables = warm_python.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", client)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of index, tokenizer and configuration: about 20,000 tokens of shuffled words."""
    return token_set(tmp_path_factory.mktemp("tokens"), "words")


def token_set(folder: Path, *sources: str) -> dict[str, Path]:
    """Make a token set of 150 documents, alternating between these sources."""
    draw = np.random.default_rng(5)
    rows = []
    for number in range(150):
        source = sources[number % len(sources)]
        name = f"{source}/all/{number}"
        text = " ".join(draw.choice(WORDS, size=120)).capitalize() + "."
        described = {"id": name, "text": text, "language": "nl", "language_score": 1.0, "source": source}
        known = {"license": None, "cluster": name, "cluster_size": 1, "id_hash": id_hash(name)}
        rows.append({**described, **known})
    rows.sort(key=lambda row: (row["id_hash"], row["id"]))
    documents = folder / "documents.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=FINAL_SCHEMA), documents)
    paths = {
        "tokenizer": folder / "tokenizer.json",
        "configuration": folder / "tokenizer_config.json",
        "index": folder / "index.json",
    }
    settings = TrainSettings(vocabulary_size=304, validation_fraction=0.1)
    tokenizer_step.run(
        settings, documents=[documents], tokenizer=paths["tokenizer"], configuration=paths["configuration"]
    )
    sharded(paths, documents, folder)
    return paths


def sharded(paths: dict[str, Path], documents: Path, folder: Path) -> None:
    """Make the shards and the index of documents by a tokenizer."""
    splits = {name: folder / f"{name}.arrow" for name in ("train", "validation")}
    shard = ShardSettings(shard=0, shards=1, validation_fraction=0.1)
    shard_step.run(shard, tokenizer=paths["tokenizer"], documents=[documents], **splits)
    lists = {name: [path] for name, path in splits.items()}
    index_step.run(IndexSettings(shards=1), **lists, index=paths["index"])
    assert json.loads(paths["index"].read_text())["train"]["tokens"] > 15_000


@pytest.fixture(scope="session")
def settings() -> Callable[..., SegmentSettings]:
    """Return a function that makes a segment of a tiny model with changed training settings."""

    def make(
        first_step: int = 0, last_step: int = 10, architecture: dict[str, Any] | None = None, **training: Any
    ) -> SegmentSettings:
        shape = {"layers": 2, "width": 32, "heads": 4, "key_value_heads": 2, **(architecture or {})}
        usual = {"sequence_length": 32, "batch_size": 4, "micro_batch_size": 1, "steps": 10, "learning_rate": 0.01}
        training = {**usual, "warmup_steps": 2, "checkpoint_every": 3, **training}
        values = {"seed": 7, "first_step": first_step, "last_step": last_step}
        return SegmentSettings.model_validate({**values, "architecture": shape, "training": training})

    return make
