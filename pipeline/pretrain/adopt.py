"""Run the step `pretrain adopt`: import a pretrained model in Transformers' layout as the milestone of step 0.

Its weights stay as they are. Where the run has another tokenizer, new embeddings are composed from the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.model import huggingface
from pipeline.model.networks import parameter_shapes
from pipeline.model.settings import Architecture, RopeScaling
from pipeline.pretrain.checkpoints import checkpoint
from pipeline.pretrain.settings import AdoptSettings
from pipeline.tokenizer.encoder import read_token_bytes
from pipeline.tokens.token_reader import TokenReader

EMBEDDING_WEIGHTS = ("embedding.weight", "output.weight")
UNCHECKED_KEYS = ("preset", "rope_theta", "rope_scaling", "initial_deviation", "base_width")
"""Keys of a shape that may differ: the rotation, which a longer context changes, and keys that affect no weight."""
_FILE = "rank-00000.safetensors"


def run(
    settings: AdoptSettings, *, model: list[Path], index: Path, tokenizer: Path, configuration: Path, milestone: Path
) -> dict[str, Any]:
    """Write the milestone of step 0; return its number of parameters and how its embeddings were made.

    Args:
        model: the files of a folder that AutoModelForCausalLM loads.
        index: the tokens of `tokenizer`.
        configuration: tokenizer_config.json, with the special tokens.
    """
    folder = next((file.parent for file in model if file.name == "config.json"), model[0].parent)
    check_matches_architecture(folder, settings.architecture)
    reader = TokenReader(index, "train")
    of_theirs, their_size, theirs = huggingface.load_pretrained(folder)
    mapping = _map_embeddings(folder, their_size, tokenizer, configuration, reader.vocabulary_size)
    shapes = parameter_shapes(settings.architecture, reader.vocabulary_size)

    def convert_weight(name: str) -> Tensor:
        tensor = theirs[name]
        if not tensor.isfinite().all():
            raise InputError(f"{folder} has NaN or infinite numbers in {name}: name another model")
        return (mapping.map_embedding(tensor) if mapping and name in EMBEDDING_WEIGHTS else tensor).contiguous()

    _write_milestone(milestone, shapes, convert_weight)
    longest = huggingface.read_architecture(folder)[2]
    huggingface.save_pretrained(
        checkpoint.CheckpointReader(milestone).weights(),
        of_theirs,
        reader.vocabulary_size,
        longest,
        tokenizer=tokenizer,
        tokenizer_configuration=configuration,
        folder=milestone / layout.CHECKPOINT_MODEL,
        ends=_map_end_tokens(folder, their_size, tokenizer, configuration, is_mapped=mapping is not None),
    )
    kept = {"tokens_copied": their_size, "tokens_composed": 0, "tokens_unknown": 0}
    return {
        "parameters": sum(shape.numel() for shape in shapes.values()),
        "same_tokenizer": mapping is None or mapping.rows == [[number] for number in range(reader.vocabulary_size)],
        "rotation": list_rope_differences(folder, settings.architecture),
        **(mapping.counts() if mapping else kept),
    }


def check_matches_architecture(folder: Path, architecture: Architecture) -> None:
    """Check that a model has the configured shape and that every tensor of it is known.

    Raises:
        InputError: a key of the shape differs, or the files hold other tensors; the message names all of them.
    """
    theirs, _, held = huggingface.load_pretrained(folder)
    read_token_bytes(folder / "tokenizer.json")
    # Rotary angles are computed, and a tied output is the embedding, whatever else was saved.
    known = ("rotary_emb.inv_freq", *(["lm_head.weight"] if theirs.tie_embeddings else []))
    if unused := [name for name in held.list_unused() if not name.endswith(known)]:
        raise InputError(
            f"{folder} holds {unused[0]}{f' and {len(unused) - 1} more' * (len(unused) > 1)}, which its config.json "
            "does not describe: use the configuration that belongs to these weights"
        )
    if theirs.name != architecture.name:
        raise InputError(
            f"{folder} holds a {theirs.name}, but architecture is a {architecture.name}: change one of them"
        )
    effective: dict[str, Callable[[Architecture], object]] = {
        "head_width": lambda a: a.head_dimension,
        "key_value_heads": lambda a: a.key_value_head_count,
        "feed_forward_width": lambda a: a.intermediate_width,
    }
    wanted = [
        f"{key}: {value(theirs)}"
        for key in Architecture.model_fields
        if key not in UNCHECKED_KEYS
        for value in [effective.get(key, lambda a, key=key: getattr(a, key))]
        if value(theirs) != value(architecture)
    ]
    if wanted:
        raise InputError(f"{folder} holds a model of another shape than architecture: write {', '.join(wanted)}")


def list_rope_differences(folder: Path, architecture: Architecture) -> list[str]:
    """Return the differences of the rotary embedding from the pretrained model."""
    theirs = huggingface.read_architecture(folder)[0]
    pairs = ((key, getattr(theirs, key), getattr(architecture, key)) for key in ("rope_theta", "rope_scaling"))
    return [f"{key} {_format_value(now)}, was {_format_value(before)}" for key, before, now in pairs if before != now]


def _format_value(value: float | RopeScaling | None) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else f"by {value.factor:g}"


def _map_embeddings(
    folder: Path, their_size: int, tokenizer: Path, configuration: Path, vocabulary_size: int
) -> EmbeddingMapping | None:
    """Return how to make the embeddings; None where both vocabularies are equal."""
    ours, theirs = read_token_bytes(tokenizer), read_token_bytes(folder / "tokenizer.json")[:their_size]
    special = _map_special_tokens(folder, their_size, tokenizer, configuration)
    if ours == theirs and vocabulary_size == their_size and all(a == b for a, b in special.items()):
        return None
    return map_vocabularies(ours, theirs, special, vocabulary_size)


def _map_special_tokens(folder: Path, their_size: int, tokenizer: Path, configuration: Path) -> dict[int, int]:
    """Return the ids of their begin, end and padding tokens by ours; theirs may be missing, or several."""
    ours = huggingface.read_special_token_ids(tokenizer, configuration)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    theirs = {key: [value] if isinstance(value, int) else value for key, value in config.items() if key in ours}
    # Some models have several end tokens; others write -1 for none.
    known = {key: [n for n in numbers or () if 0 <= n < their_size] for key, numbers in theirs.items()}
    return {ours[key]: numbers[0] for key, numbers in known.items() if numbers}


def _map_end_tokens(
    folder: Path, their_size: int, tokenizer: Path, configuration: Path, *, is_mapped: bool
) -> list[int]:
    """Return our ids of their end tokens; with another tokenizer, those of the same role or the same content."""
    theirs = [number for number in huggingface.read_end_token_ids(folder) if number < their_size]
    if not is_mapped:
        return theirs
    paths = folder / "tokenizer.json", tokenizer
    added = [json.loads(path.read_text(encoding="utf-8")).get("added_tokens", []) for path in paths]
    names = {one["id"]: one["content"] for one in added[0]}
    ours = {one["content"]: one["id"] for one in added[1]}
    roles = {theirs: ours for ours, theirs in _map_special_tokens(folder, their_size, tokenizer, configuration).items()}
    ids = (roles.get(number, ours.get(names.get(number))) for number in theirs)
    return [*dict.fromkeys(number for number in ids if number is not None)]


@torch.no_grad()
def _write_milestone(milestone: Path, shapes: Mapping[str, torch.Size], get: Callable[[str], Tensor]) -> None:
    """Write a checkpoint without optimizer state and steps."""
    milestone.mkdir(parents=True)
    tensors = {f"model.{name}": list(shape) for name, shape in shapes.items()}
    made = checkpoint.LazyTensors([*tensors], lambda name: get(name.removeprefix("model.")))
    written = checkpoint.write_tensors(milestone / _FILE, made)
    state = {"step": 0, "optimizer_step": 0, "tokens_seen": 0, "torch": str(torch.__version__)}
    files = {_FILE: {**written, "pieces": tensors}}
    checkpoint.write_json(milestone / layout.CHECKPOINT_STATE, {**state, "files": files, "tensors": tensors})


TokenBytes = Sequence[bytes | None]
"""The bytes of each token by its id; None for special tokens."""


class EmbeddingMapping(NamedTuple):
    """The rows of the old embedding whose mean is each row of the new one; an empty list means all rows."""

    rows: list[list[int]]

    def counts(self) -> dict[str, int]:
        """Return how many rows copy one old row, average several, or average all because their text is unknown."""
        sizes = [len(row) for row in self.rows]
        copied, unknown = sizes.count(1), sizes.count(0)
        return {"tokens_copied": copied, "tokens_composed": len(sizes) - copied - unknown, "tokens_unknown": unknown}

    def map_embedding(self, theirs_VD: Tensor) -> Tensor:
        """Return the new embedding, (V', D), from the old one, (V, D)."""
        numbers = torch.tensor([number for row in self.rows for number in row], dtype=torch.long)
        begins = torch.tensor([0, *accumulate(map(len, self.rows))][:-1], dtype=torch.long)
        ours_VD = F.embedding_bag(numbers, theirs_VD, begins, mode="mean")
        unknown = torch.tensor([not row for row in self.rows])
        ours_VD[unknown] = theirs_VD.mean(0)
        return ours_VD


def map_vocabularies(ours: TokenBytes, theirs: TokenBytes, special: Mapping[int, int], size: int) -> EmbeddingMapping:
    """Map `size` embeddings of our vocabulary to theirs.

    A token gets the embedding of the token with the same bytes, else the mean of the longest tokens that its bytes
    split into (after Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression", who split with the
    other tokenizer).

    Args:
        special: by our id, their id of the special token with the same role.
    """
    # The last of several tokens with equal text wins: SentencePiece's byte fallbacks come first.
    numbers = {text: number for number, text in enumerate(theirs) if text}
    longest = max(map(len, numbers), default=0)
    rows = [_split_into_tokens(text, numbers, longest) if text else [] for text in ours]
    rows = [[special[number]] if number in special else row for number, row in enumerate(rows)]
    return EmbeddingMapping((rows + [[] for _ in range(size - len(rows))])[:size])


def _split_into_tokens(text: bytes, numbers: Mapping[bytes, int], longest: int) -> list[int]:
    """Split a text greedily into the longest tokens; return none where a byte is in no token."""
    token_ids: list[int] = []
    place = 0
    while place < len(text):
        for end in range(min(len(text), place + longest), place, -1):
            if (number := numbers.get(text[place:end])) is not None:
                token_ids.append(number)
                place = end
                break
        else:
            return []
    return token_ids
