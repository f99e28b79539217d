"""Loss and bits per byte are those of the validated documents, in every group, with valid intervals."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._C._distributed_c10d import HashStore
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.model.decoder import Decoder
from pipeline.model.loss import token_cross_entropies
from pipeline.model.networks import get_network
from pipeline.model.settings import Architecture
from pipeline.pretrain.data_loader import make_batch
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.settings import Training
from pipeline.pretrain.validation import document_losses, rows_per_pass, summarize_losses
from pipeline.tokenizer import train
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens.validation_reader import ValidationSet
from tests.tokens.conftest import FRACTION, build, make_rows, write_documents
from tests.tokens.test_validation_reader import by_hand

TRAINING = {"sequence_length": 16, "batch_size": 4, "micro_batch_size": 2, "steps": 1, "learning_rate": 1.0}
SETTINGS = Training.model_validate(TRAINING)
SHAPE = Architecture(layers=4, width=16, heads=2)
VOCABULARY = 320


class Told:
    """A backend with token losses from a function of a batch."""

    def __init__(self, losses: Callable[[Batch], torch.Tensor], data_rank: int = 0, data_size: int = 1) -> None:
        self.data_rank, self.data_size = data_rank, data_size
        self.token_losses = losses


def by_token(batch: Batch) -> torch.Tensor:
    """Return the target's own number as its loss."""
    return torch.where(batch.target_BT == -100, 0, batch.target_BT).double()


def losses_of(backend: Told, held_out: ValidationSet) -> np.ndarray:
    def batch(*arrays: np.ndarray) -> Batch:
        return Batch(*map(torch.from_numpy, arrays))

    return document_losses(backend, held_out, SETTINGS, SHAPE, batch, lambda x: x, lambda: None)  # type: ignore[arg-type]


def run(index: Path, losses: Callable[[Batch], torch.Tensor] = by_token, tokens: int | None = None) -> dict[str, Any]:
    held_out = ValidationSet(index, tokens)
    return dict(summarize_losses(held_out, losses_of(Told(losses), held_out)))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the index of three shards of documents of two languages and sources: English first, then Dutch."""
    folder = tmp_path_factory.mktemp("tokens")
    documents = [write_documents(folder / f"{name}.parquet", make_rows(60, name)) for name in ("en", "nl")]
    tokenizer = folder / "tokenizer.json"
    settings = TrainSettings(vocabulary_size=VOCABULARY, validation_fraction=FRACTION)
    train.run(settings, documents=documents, tokenizer=tokenizer, configuration=folder / "tokenizer_config.json")
    return build(folder / "main", documents, tokenizer)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_mean_covers_exactly_the_validated_tokens(index: Path) -> None:
    for tokens in (None, 150):
        line, seen = run(index, tokens=tokens), ValidationSet(index, tokens).summarize_counts()
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        rows = sorted(by_hand(index).values(), key=lambda row: (row["source"], row["id_hash"]))
        share = -(-sum(row["language"] == "nl" for row in rows) * (tokens or 10**9) // seen["of_tokens"])
        taken: dict[str, int] = defaultdict(int)
        for row in rows:
            taken[row["source"]] += 1
            size = sum(one["source"] == row["source"] for one in rows)
            if tokens is None or taken[row["source"]] <= -(-size * tokens // seen["of_tokens"]):
                for name in ("", f"/language/{row['language']}", f"/source/{row['source']}"):
                    for place, value in enumerate((sum(row["tokens"][1:]), len(row["tokens"]) - 1, row["bytes"])):
                        sums[name][place] += value
        assert len(sums) == 5 and share
        for name, (loss, count, size) in sums.items():
            assert line[f"validation_loss{name}"] == pytest.approx(loss / count, rel=1e-12)
            assert line[f"validation_bits_per_byte{name}"] == pytest.approx(loss / size / math.log(2), rel=1e-12)
        assert sums[""][1:] == [seen["tokens"], seen["bytes"]]


def test_small_sample_of_sorted_text_contains_both_languages(index: Path) -> None:
    line = run(index, tokens=20)
    assert line["validation_loss/language/nl"] != line["validation_loss/language/en"]
    assert {name for name in line if name.startswith("validation_loss/language/")} == {
        "validation_loss/language/nl",
        "validation_loss/language/en",
    }


@pytest.mark.parametrize("tokens", [None, 150])
def test_validation_losses_equal_a_transformers_forward_pass(index: Path, tokens: int | None) -> None:
    """The model of another library, on rows laid out by this test from the tables of the shards."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=16,
        )
    ).eval()

    def losses(batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return token_cross_entropies(model(batch.input_BT).logits, batch.target_BT)

    line = run(index, losses, tokens)
    number = len(ValidationSet(index, tokens).tokens_D)
    rows = sorted(by_hand(index).values(), key=lambda row: (row["source"], row["id_hash"]))
    by_source = {name: [row for row in rows if row["source"] == name] for name in ("en_book", "nl_book")}
    total = ValidationSet(index).split_tokens
    parts = [some if tokens is None else some[: -(-len(some) * tokens // total)] for some in by_source.values()]
    chosen = [row for part in parts for row in part]
    assert len(chosen) == number
    ids = [token for row in chosen for token in row["tokens"]]
    owner = [place for place, row in enumerate(chosen) for _ in row["tokens"]]
    begins = {place for place in range(len(ids)) if not place or owner[place] != owner[place - 1]}
    nats = dict.fromkeys(("en", "nl"), 0.0)
    for start in range(0, len(ids) - 1, 16):
        window = torch.tensor(ids[start : start + 17])
        with torch.no_grad():
            log = F.log_softmax(model(window[None, :-1]).logits[0].double(), dim=-1)
        for offset, target in enumerate(window[1:].tolist(), start=1):
            if start + offset not in begins:
                nats[chosen[owner[start + offset]]["language"]] -= float(log[offset - 1, target])
    for name in ("en", "nl"):
        size = sum(row["bytes"] for row in chosen if row["language"] == name)
        expected = nats[name] / math.log(2) / size
        assert line[f"validation_bits_per_byte/language/{name}"] == pytest.approx(expected, rel=1e-5)
    whole = sum(nats.values()) / math.log(2) / sum(row["bytes"] for row in chosen)
    assert line["validation_bits_per_byte"] == pytest.approx(whole, rel=1e-5)


def test_shares_of_two_processes_add_up_to_the_whole(index: Path) -> None:
    held_out = ValidationSet(index)

    def losses(rank: int, size: int) -> np.ndarray:
        return losses_of(Told(by_token, rank, size), held_out)

    assert (losses(0, 2) + losses(1, 2) == losses(0, 1)).all() and losses(0, 2).any() and losses(1, 2).any()


@pytest.mark.parametrize(
    ("shape", "rows", "each"),
    [
        ({"micro_batch_size": 1}, 3, 3),  # all of them, although a pass could take six
        ({"micro_batch_size": 1}, 6, 6),
        ({"micro_batch_size": 1}, 7, 4),  # two passes of equal size
        ({"micro_batch_size": 2}, 100, 12),
        ({"micro_batch_size": 1, "mesh": {"pipeline": 2}}, 100, 3),
        ({"micro_batch_size": 1, "mesh": {"pipeline": 2, "interleaving": 2}}, 100, 4),
        ({"micro_batch_size": 1, "mesh": {"pipeline": 12}}, 100, 1),
    ],
)
def test_validation_pass_uses_half_the_hidden_states_of_a_step(shape: dict[str, Any], rows: int, each: int) -> None:
    training = Training.model_validate({**TRAINING, **shape})
    assert rows_per_pass(training, 12, rows) == each


@pytest.mark.parametrize("preset", ["llama3", "qwen3-moe"])
@pytest.mark.parametrize("has_documents", [False, True])
def test_token_losses_are_bitwise_equal_to_single_rows(has_documents: bool, preset: Any) -> None:
    torch.manual_seed(0)
    documents = torch.tensor([0, 4, 11, 22, 25, 33]) if has_documents else None
    of_rows = torch.tensor([[0, 4, 11], [0, 11, 11], [0, 3, 11]]) if has_documents else None
    kind: dict[str, Any] = {"experts": 4, "experts_per_token": 2} if preset == "qwen3-moe" else {}
    architecture = Architecture(preset=preset, layers=2, width=16, heads=2, key_value_heads=1, **kind)
    model: Decoder = get_network(architecture.name).model(architecture, 50)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    tokens_BT = torch.randint(0, 50, (3, 11))
    target_BT = tokens_BT.roll(-1, 1)
    target_BT[2, 4:] = -100
    passed: list[object] = []
    with torch.no_grad():
        loss_BT = model(tokens_BT, target_BT, of_rows, after_layer=passed.append)
        whole = model(tokens_BT, target_BT, documents)
        together_BT = token_cross_entropies(model(tokens_BT, None, documents), target_BT, at_once=4)
        for row in range(3):
            here = slice(row, row + 1)
            logits_BTV = model(tokens_BT[here], None, None if of_rows is None else of_rows[row])
            assert torch.equal(loss_BT[here], token_cross_entropies(logits_BTV, target_BT[here]))
    assert passed == list(model.blocks)  # each once, after all rows
    torch.testing.assert_close(loss_BT, together_BT)  # a kernel rounds differently with more rows at once
    assert loss_BT.shape == (3, 11) and (loss_BT[2, 4:] == 0).all()
    assert float(loss_BT.sum()) == pytest.approx(float(whole), rel=1e-6)


def test_batch_has_separate_document_offsets_per_row() -> None:
    """A GPU kernel reads offsets behind the row as foreign memory, and takes time for each document."""
    begin, training = 9, Training.model_validate({**TRAINING, "sampling": {"mask_documents": True}})
    input_BT = np.array([[1, 2, 9, 4], [9, 2, 3, 4], [1, 9, 9, 4]])
    made = make_batch(input_BT, input_BT, training, begin, torch.device("cpu"))
    assert made.documents is not None and made.documents.tolist() == [[0, 2, 4, 4], [0, 4, 4, 4], [0, 1, 2, 4]]
    plain = make_batch(input_BT, input_BT, Training.model_validate(TRAINING), begin, torch.device("cpu"))
    assert plain.documents is None
