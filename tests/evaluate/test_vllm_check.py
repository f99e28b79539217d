"""vLLM, where it is installed, continues a prompt in its own process, and its tokens are compared with Transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.evaluate import vllm_check
from pipeline.evaluate.text_generator import TextGenerator

ROOT = Path(__file__).parents[2]
PROMPT = "In de winter is het water"
SUBSTITUTE = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/auditors")!r})
from substitute_engine import LLM, SamplingParams
__version__ = "0.32.0"
"""
EQUAL = {"version": "0.32.0", "device": "cpu", "dtype": "float32"}
EQUAL |= {"is_prompt_equal": True, "tokens": 16, "equal_tokens": 16}


@pytest.fixture(scope="module")
def generator(milestone: Path) -> TextGenerator:
    return TextGenerator(milestone / "huggingface")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str = "") -> None:
    """Write a module `vllm` that answers by Transformers, with changes, and put it on the path of all processes."""
    (folder / "vllm").mkdir()
    (folder / "vllm/__init__.py").write_text(SUBSTITUTE + code)
    platforms = "import types\ncurrent_platform = types.SimpleNamespace(device_type='cpu')\n"
    (folder / "vllm/platforms.py").write_text(platforms)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (folder, ROOT))))


def check(generator: TextGenerator) -> dict[str, Any]:
    answer = vllm_check.request_continuation(Path(generator.model.name_or_path), PROMPT)
    assert answer is not None
    return vllm_check.compare_continuation(answer, PROMPT, generator)


def test_missing_vllm_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_check, "find_spec", lambda _: None)
    assert vllm_check.request_continuation(tmp_path, PROMPT) is None


def test_equal_tokens_of_vllm_are_counted(
    generator: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    assert check(generator) == EQUAL


def test_other_tokens_of_vllm_are_counted(
    generator: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path,
        monkeypatch,
        """
class LLM(LLM):
    def generate(self, prompts, settings):
        (output,) = super().generate(prompts, settings)
        output.prompt_token_ids = output.prompt_token_ids[1:]
        output.outputs[0].token_ids[-1] = (output.outputs[0].token_ids[-1] + 1) % len(self.tokenizer)
        return [output]
""",
    )
    checked = check(generator)
    assert not checked["is_prompt_equal"] and checked["tokens"] == 16 > checked["equal_tokens"]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (
            "class LLM:\n    def __init__(self, **_): raise ValueError('head size 8 is not supported.')",
            {"version": "0.32.0", "problem": "exit code 1: ValueError: head size 8 is not supported"},
        ),
        ("import os\nos.abort()", {"problem": "exit code -6"}),
        (
            "class LLM:\n    def __init__(self, **_):\n        import time; time.sleep(600)",
            {"problem": "no answer in 0 seconds"},
        ),
    ],
    ids=["error", "crash", "time limit"],
)
def test_problem_of_vllm_is_recorded(
    code: str, answer: dict[str, str], generator: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, code)
    if "no answer" in answer["problem"]:
        monkeypatch.setattr(vllm_check, "TIME_LIMIT_SECONDS", 0)
    assert check(generator).items() >= answer.items()


def test_token_is_compared_after_the_tokens_of_vllm(generator: TextGenerator) -> None:
    prompt = generator.encoder(PROMPT).input_ids
    (written,) = generator.generate([prompt], 6)
    other = [*written[:2], (written[2] + 1) % 200]  # the tokens after another one are compared behind it
    with torch.inference_mode():
        for _ in range(3):
            other.append(int(generator.model(torch.tensor([prompt + other])).logits[0, -1].argmax()))
    checked = vllm_check.compare_continuation({"prompt": prompt, "written": other}, PROMPT, generator)
    assert checked == {"is_prompt_equal": True, "tokens": 6, "equal_tokens": 5}
