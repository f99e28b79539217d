"""A tokenizer as small as the models of these tests."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Return tokenizer.json with 96 tokens; tokenizer_config.json lies beside it."""
    letters = {chr(33 + i): i for i in range(94)}
    made = Tokenizer(models.WordLevel({"<pad>": 94, "x": 95, **letters}, unk_token="!"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(['"'])
    made.save(str(tmp_path / "tokenizer.json"))
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": '"', "unk_token": "!"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    return tmp_path / "tokenizer.json"
