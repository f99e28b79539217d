"""A Transformers model becomes the first milestone: it computes the same, and another tokenizer keeps what it can."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from pipeline.core.errors import InputError
from pipeline.evaluate.baselines import _write_untrained
from pipeline.evaluate.text_generator import TextGenerator
from pipeline.model.huggingface import read_special_token_ids
from pipeline.model.settings import RopeScaling
from pipeline.pretrain import adopt, segment
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import AdoptSettings, SegmentSettings
from pipeline.tokenizer import train as tokenizer_step
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.token_reader import TokenReader
from tests.pretrain.conftest import sharded

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]
TWO = "torchrun --standalone --nproc-per-node=2"


def taken(settings: SegmentSettings, model: Path, tokens: Tokens, milestone: Path) -> dict[str, Any]:
    chosen = AdoptSettings(architecture=settings.architecture, folder="{data}/model")
    return adopt.run(chosen, model=sorted(model.iterdir()), **tokens, milestone=milestone)


def trained(settings: SegmentSettings, tokens: Tokens, folder: Path, previous: list[Path], launch: str = "") -> float:
    """Train and return the loss of the first batch."""
    places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "previous": previous}
    segment.run(settings, **tokens, **places, launch=launch)
    return float(metrics.read_metrics(folder / "milestone/metrics.jsonl")[0]["loss"])


@pytest.fixture(scope="module")
def theirs(settings: Make, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that Transformers made and wrote, in half precision, with the tokenizer of the tokens."""
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = {"vocab_size": TokenReader(tokens["index"], "train").vocabulary_size, "num_key_value_heads": 2}
    rotation = {"rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "initializer_range": 0.2}
    folder = tmp_path_factory.mktemp("theirs") / "model"
    special = read_special_token_ids(tokens["tokenizer"], tokens["configuration"])
    LlamaForCausalLM(LlamaConfig(**shape, **vocabulary, **rotation, **special)).bfloat16().save_pretrained(folder)
    shutil.copyfile(tokens["tokenizer"], folder / "tokenizer.json")
    return folder


def first_loss(model: Path, settings: SegmentSettings, index: Path) -> float:
    """The loss of the first batch by Transformers' own code."""
    training = settings.training
    sampler = Sampler(TokenReader(index, "train"), training.sequence_length, training.batch_size, settings.seed)
    input_BT, target_BT = map(torch.from_numpy, sampler.read_batch(0))
    with torch.no_grad():
        logits_BTV = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(input_BT).logits
    return float(torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten()))


@pytest.mark.parametrize(
    "training",
    [{}, pytest.param({"backend": "deepspeed", "strategy": "zero1"}, marks=pytest.mark.slow)],
    ids=["fsdp", "deepspeed"],
)
def test_training_continues_from_the_imported_model_exactly(
    training: dict[str, Any], theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(architecture={"feed_forward_width": 128}, last_step=2, steps=2, **training)
    counts = taken(chosen, theirs, tokens, tmp_path / "0")
    assert counts["same_tokenizer"] and counts["tokens_unknown"] == counts["tokens_composed"] == 0
    (written, original) = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
        for path in (tmp_path / "0/huggingface", theirs)
    )
    assert written.keys() == original.keys() and all(torch.equal(written[name], original[name]) for name in original)
    expected = first_loss(theirs, chosen, tokens["index"])
    assert trained(chosen, tokens, tmp_path, [tmp_path / "0"], TWO if training else "") == pytest.approx(
        expected, abs=2e-5
    )
    assert abs(expected - math.log(304)) > 0.05, "another model would have another first loss"


def test_first_segment_resumes_after_a_kill_without_difference(
    theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(architecture={"feed_forward_width": 128})
    taken(chosen, theirs, tokens, tmp_path / "0")
    trained(chosen, tokens, tmp_path, [tmp_path / "0"])
    whole = (tmp_path / "milestone/rank-00000.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "milestone")
    trained(chosen, tokens, tmp_path, [tmp_path / "0"])
    assert (tmp_path / "milestone/rank-00000.safetensors").read_bytes() == whole


def named_ends(folder: Path) -> list[Any]:
    return [
        json.loads((folder / name).read_text())["eos_token_id"] for name in ("config.json", "generation_config.json")
    ]


def test_every_end_of_text_token_is_kept_until_the_export(
    theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(theirs, tmp_path / "model"))
    own = read_special_token_ids(tokens["tokenizer"], tokens["configuration"])["eos_token_id"]
    ends = [200, own, 250]
    generation = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": ends}))
    chosen = settings(architecture={"feed_forward_width": 128}, last_step=2, steps=2)
    taken(chosen, model, tokens, tmp_path / "0")
    trained(chosen, tokens, tmp_path, [tmp_path / "0"])
    assert named_ends(tmp_path / "0/huggingface") == named_ends(tmp_path / "milestone/huggingface") == [ends, ends]
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "milestone/huggingface")
    untrained = tmp_path / "untrained"
    _write_untrained(tmp_path / "milestone/huggingface", 1, untrained)
    assert named_ends(untrained) == [ends, ends]
    likeliest = int(written(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax())
    for number in (likeliest, own):
        (tmp_path / "milestone/huggingface/generation_config.json").write_text(
            json.dumps({"eos_token_id": [own, number] if number != own else own})
        )
        result = TextGenerator(tmp_path / "milestone/huggingface").generate([[1, 2, 3]], 4)
        assert (result == [[]]) == (number == likeliest), "it stops at any of them"


def test_end_tokens_of_another_tokenizer_are_mapped_by_role_or_name(
    learned: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(learned, tmp_path / "model"))
    theirs = {one["content"]: one["id"] for one in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    ours = {one["content"]: one["id"] for one in json.loads(tokens["tokenizer"].read_text())["added_tokens"]}
    (name, *_) = [name for name in theirs if name in ours and "end" not in name]
    end = read_special_token_ids(tokens["tokenizer"], tokens["configuration"])["eos_token_id"]
    config = json.loads((model / "config.json").read_text())
    listed = [config["eos_token_id"], theirs[name], 250]  # the last has no name
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": listed}))
    taken(settings(last_step=2, steps=2), model, tokens, tmp_path / "0")
    assert named_ends(tmp_path / "0/huggingface") == [[end, ours[name]]] * 2


def test_importing_the_same_model_gives_the_same_bytes(
    theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(architecture={"feed_forward_width": 128})
    hashes = []
    for name in ("a", "b"):
        taken(chosen, theirs, tokens, tmp_path / name)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        hashes.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert hashes[0] == hashes[1] and len(hashes[0]) >= 6


@pytest.fixture(scope="module")
def learned(settings: Make, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned these words with another vocabulary of fewer tokens."""
    folder = tmp_path_factory.mktemp("learned")
    documents = tokens["index"].parent / "documents.parquet"
    others = {name: folder / tokens[name].name for name in ("tokenizer", "configuration", "index")}
    chosen = TrainSettings(vocabulary_size=290, validation_fraction=0.1)
    places = {name: others[name] for name in ("tokenizer", "configuration")}
    tokenizer_step.run(chosen, documents=[documents], **places)
    sharded(others, documents, folder)
    trained(settings(last_step=60, steps=60, checkpoint_every=0), others, folder, [])
    return folder / "milestone/huggingface"


def test_another_tokenizer_keeps_what_the_model_learned(
    learned: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(last_step=2, steps=2)
    counts = taken(chosen, learned, tokens, tmp_path / "0")
    assert not counts["same_tokenizer"] and counts["tokens_copied"] > 280 and counts["tokens_composed"] > 5
    assert counts["tokens_copied"] + counts["tokens_composed"] + counts["tokens_unknown"] == 304
    adopted = trained(chosen, tokens, tmp_path / "adopted", [tmp_path / "0"])
    drawn = trained(chosen, tokens, tmp_path / "drawn", [])
    assert adopted < drawn - 0.5, "embeddings of the wrong rows would know nothing"


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"layers": 3, "feed_forward_width": 128}, "write layers: 2$"),
        ({"heads": 2, "feed_forward_width": 64}, "write feed_forward_width: 128, heads: 4, head_width: 8$"),
        ({"feed_forward_width": 128, "tie_embeddings": True}, "write tie_embeddings: False$"),
    ],
)
def test_another_shape_is_refused_with_the_settings_to_write(
    architecture: dict[str, Any], message: str, theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        taken(settings(architecture=architecture), theirs, tokens, tmp_path / "0")
    assert not (tmp_path / "0").exists()


def test_longer_context_changes_the_rotary_scaling(
    theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    scaling = RopeScaling(factor=4, original_context_length=32).model_dump()
    longer = settings(
        architecture={"feed_forward_width": 128, "rope_scaling": scaling}, sequence_length=128, last_step=1, steps=2
    )
    taken(longer, theirs, tokens, tmp_path / "0")
    trained(longer, tokens, tmp_path, [tmp_path / "0"])
    config = json.loads((tmp_path / "milestone/huggingface/config.json").read_text())
    assert config["rope_scaling"]["factor"] == 4 and config["max_position_embeddings"] == 128
    before = json.loads((tmp_path / "0/huggingface/config.json").read_text())
    assert "rope_scaling" not in before, "the imported model is unchanged"


def test_unknown_weights_are_refused(theirs: Path, settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    """A configuration of fewer layers would drop the others unnoticed."""
    cut = Path(shutil.copytree(theirs, tmp_path / "cut"))
    config = json.loads((cut / "config.json").read_text())
    (cut / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    chosen = settings(architecture={"feed_forward_width": 128, "layers": 1})
    with pytest.raises(InputError, match=r"holds model\.layers\.1\.\S+ and 8 more, which its config"):
        taken(chosen, cut, tokens, tmp_path / "0")
    # A tied output may have been saved as well.
    (cut / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    taken(settings(architecture={"feed_forward_width": 128, "tie_embeddings": True}), cut, tokens, tmp_path / "0")


def test_end_token_is_mapped_by_name_to_the_new_id(tmp_path: Path) -> None:
    written = {
        "model/config.json": {"eos_token_id": [1, 9]},
        "model/tokenizer.json": {"added_tokens": [{"content": "<e>", "id": 1}, {"content": "<turn>", "id": 9}]},
        "ours.json": {"added_tokens": [{"content": "<end>", "id": 2}, {"content": "<turn>", "id": 5}]},
        "roles.json": {"eos_token": "<end>"},
    }
    (tmp_path / "model").mkdir()
    for name, content in written.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours, roles = tmp_path / "ours.json", tmp_path / "roles.json"
    assert adopt._map_end_tokens(tmp_path / "model", 10, ours, roles, is_mapped=True) == [2, 5]
