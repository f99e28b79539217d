"""Each held-out token's loss is counted for the language and the source of its own document."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pipeline.model.llama.model import Llama
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.backend import Batch, cross_entropies, token_losses
from pipeline.pretrain.settings import Training
from pipeline.pretrain.validation import Groups, validate
from pipeline.tokenizer import train
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens.reader import TokenReader, open_shard
from tests.tokens.conftest import FRACTION, build, make_rows, write_documents

TRAINING = {"sequence_length": 16, "batch_size": 4, "micro_batch_size": 2, "steps": 1, "learning_rate": 1.0}


class ByToken:
    """A backend in which a token's loss is its own number."""

    def __init__(self, data_rank: int = 0, data_size: int = 1) -> None:
        self.data_rank, self.data_size = data_rank, data_size

    def token_losses(self, batch: Batch) -> torch.Tensor:
        return torch.where(batch.target_BT == -100, 0, batch.target_BT).double()


def split(inputs: np.ndarray, targets: np.ndarray) -> list[Batch]:
    pairs = zip(*(torch.from_numpy(array).split(2) for array in (inputs, targets)), strict=True)
    return [Batch(*pair) for pair in pairs]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the index of three shards of documents of two languages and sources, mixed."""
    folder = tmp_path_factory.mktemp("tokens")
    documents = [write_documents(folder / f"{name}.parquet", make_rows(60, name)) for name in ("nl", "en")]
    tokenizer = folder / "tokenizer.json"
    settings = TrainSettings(vocabulary_size=320, validation_fraction=FRACTION)
    train.run(settings, documents=documents, tokenizer=tokenizer, configuration=folder / "tokenizer_config.json")
    return build(folder / "main", documents, tokenizer)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def by_hand(index: Path) -> dict[str, tuple[float, float]]:
    """Return the sum of the token numbers and the count of the tokens of each group, but for the first token."""
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, float] = defaultdict(float)
    first = True
    for entry in json.loads(index.read_text())["validation"]["shards"]:
        for batch in open_shard(index.parent / entry["path"])[1]:
            for row in batch.to_pylist():
                for token in row["tokens"]:
                    for name in ("language", "source") if not first else ():
                        sums[f"{name}/{row[name]}"] += token
                        counts[f"{name}/{row[name]}"] += 1
                    first = False
    return {name: (sums[name], counts[name]) for name in sums}


def run(index: Path, **training: int) -> dict[str, float]:
    settings = Training.model_validate({**TRAINING, "validation_batches": 1000, **training})
    summed = lambda *values: [float(value) for value in values]  # noqa: E731
    return dict(validate(ByToken(), index, settings, split, summed, lambda: None))  # type: ignore[arg-type]


def test_losses_go_to_the_group_of_their_document(index: Path) -> None:
    line, expected, reader = run(index), by_hand(index), TokenReader(index, "validation")
    total, count = (sum(values) for values in zip(*[v for k, v in expected.items() if k.startswith("l")], strict=True))
    assert count == reader.tokens - 1 and line["validation_loss"] == pytest.approx(total / count)
    assert set(expected) == {"language/en", "language/nl", "source/en_book", "source/nl_book"}
    for name, (loss, tokens) in expected.items():
        assert line[f"validation_loss/{name}"] == pytest.approx(loss / tokens)
    parts = [line[f"validation_bits_per_byte/language/{name}"] for name in ("en", "nl")]
    assert min(parts) < line["validation_bits_per_byte"] < max(parts)
    assert line["validation_loss/language/nl"] == line["validation_loss/source/nl_book"]


def test_the_borders_of_documents_are_exact(index: Path) -> None:
    expected: dict[str, float] = defaultdict(float)
    position = 0
    for entry in json.loads(index.read_text())["validation"]["shards"]:
        for batch in open_shard(index.parent / entry["path"])[1]:
            for row in batch.to_pylist():
                places = range(position, position := position + len(row["tokens"]))
                for name in ("language", "source"):
                    expected[f"{name}/{row[name]}"] += sum(places)
    groups = Groups(index)
    positions = np.arange(position)
    found = dict(
        zip((f"{column}/{name}" for column, name in groups.names), groups.sum(positions, positions), strict=True)
    )
    assert found == expected


def test_the_shares_of_two_processes_are_the_whole(index: Path) -> None:
    halves = []
    for rank in (0, 1):
        collected: list[list[float]] = []

        def keep(*values: float | torch.Tensor, into: list[list[float]] = collected) -> list[float]:
            into.append([float(value) for value in values])
            return [max(value, 1e-9) for value in into[-1]]

        settings = Training.model_validate({**TRAINING, "validation_batches": 1000})
        validate(ByToken(rank, 2), index, settings, split, keep, lambda: None)  # type: ignore[arg-type]
        halves.append(np.array(collected[0]))
    # With one process alive, the share of each of two is counted twice.
    both = (halves[0] + halves[1]) * np.array([1, *[0.5] * 1, *[1] * 4, *[0.5] * 4])
    expected = by_hand(index)
    names = [f"{column}/{name}" for column, name in Groups(index).names]
    assert both[2:6] == pytest.approx([expected[name][0] for name in names])
    assert both[6:] == pytest.approx([expected[name][1] for name in names])


def test_a_part_of_the_text(index: Path) -> None:
    whole, part = run(index), run(index, validation_batches=2)
    assert part.keys() <= whole.keys() and part["validation_loss"] != whole["validation_loss"]
    reader = TokenReader(index, "validation")
    per_byte = part["validation_loss"] * reader.tokens / reader.bytes / math.log(2)
    assert part["validation_bits_per_byte"] == pytest.approx(per_byte)


def test_losses_of_tokens_add_up_to_the_loss_of_the_batch() -> None:
    torch.manual_seed(0)
    model = Llama(Architecture(layers=1, width=16, heads=2), 50)
    tokens_BT = torch.randint(0, 50, (3, 11))
    target_BT = tokens_BT.roll(-1, 1)
    target_BT[2, 4:] = -100
    with torch.no_grad():
        loss_BT = token_losses(model, Batch(tokens_BT, target_BT))
        whole = model(tokens_BT, target_BT)
        assert torch.equal(cross_entropies(model(tokens_BT), target_BT, at_once=4), loss_BT)
    assert loss_BT.shape == (3, 11) and (loss_BT[2, 4:] == 0).all()
    assert float(loss_BT.sum()) == pytest.approx(float(whole), rel=1e-6)
