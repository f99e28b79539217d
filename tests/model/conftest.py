"""A tokenizer as small as the models of these tests, and a memory measurement."""

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.profiler import ProfilerActivity, profile


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take longer than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Return tokenizer.json with 96 tokens; tokenizer_config.json is next to it."""
    letters = {chr(33 + i): i for i in range(94)}
    made = Tokenizer(models.WordLevel({"<pad>": 94, "x": 95, **letters}, unk_token="!"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(['"'])
    made.save(str(tmp_path / "tokenizer.json"))
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": '"', "unk_token": "!"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    return tmp_path / "tokenizer.json"


@pytest.fixture(scope="session")
def peak_bytes() -> Callable[[Callable[[], object]], int]:
    """Return a function: the peak of PyTorch's CPU allocator during some work, beyond its state before."""

    def measure(work: Callable[[], object]) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as result:
            work()
        assert result.profiler is not None
        events = [e for e in result.profiler.kineto_results.events() if e.name() == "[memory]"]
        return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))

    return measure
