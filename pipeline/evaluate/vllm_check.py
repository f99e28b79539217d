"""Ask vLLM, where it is installed, to continue one prompt, and compare its tokens with those of Transformers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.errors import anonymize_paths
from pipeline.core.lock_owner import die_with_parent
from pipeline.evaluate.text_generator import TextGenerator

TOKENS = 16
LONGEST_SEQUENCE = 256
"""Tokens: vLLM allocates keys and values for one sequence of this length."""
TIME_LIMIT_SECONDS = 15 * 60
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores of the job may not be those that vLLM binds to
}


def request_continuation(final: Path, prompt: str) -> dict[str, Any] | None:
    """Return vLLM's version, device, tokens of a prompt and greedy tokens after it, or its version and problem.

    vLLM runs in a process of its own, without a network, in fp32. None: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        return None
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+", encoding="utf-8") as log:
        places = dict.fromkeys(("TMPDIR", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"), folder)
        answer_file = Path(folder, "answer.json")
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, final, prompt, answer_file],
            env={**os.environ, **ENVIRONMENT, **places},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            problem = f"exit code {process.wait(TIME_LIMIT_SECONDS)}"
        except subprocess.TimeoutExpired:
            problem = f"no answer in {TIME_LIMIT_SECONDS} seconds"
        finally:
            with suppress(ProcessLookupError):  # vLLM may start processes
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8")) if answer_file.exists() else {}
        if "written" not in answer:
            log.seek(0)
            errors = [line.strip().removeprefix("[rank0]: ") for line in log if "Error" in line]
            answer["problem"] = anonymize_paths(f"{problem}: {errors[-1]}"[:300].rstrip(".") if errors else problem)
    return answer


def compare_continuation(answer: dict[str, Any], prompt: str, generator: TextGenerator) -> dict[str, Any]:
    """Return an answer of vLLM with counts in place of its tokens.

    A token is equal if Transformers finds it the most likely one after the same tokens.
    """
    import torch

    if "problem" in answer:
        return answer
    given, written = answer.pop("prompt"), answer.pop("written")
    with torch.inference_mode():
        logits_TV = generator.model(torch.tensor([given + written])).logits[0, len(given) - 1 : -1]
    return answer | {
        "is_prompt_equal": given == generator.encoder(prompt).input_ids,
        "tokens": len(written),
        "equal_tokens": int((logits_TV.argmax(dim=1) == torch.tensor(written)).sum()),
    }


def _run_vllm(final: str, prompt: str, answer_file: Path) -> None:
    import vllm

    answer: dict[str, Any] = {"version": vllm.__version__}
    answer_file.write_text(json.dumps(answer), encoding="utf-8")  # kept where the model does not load
    from vllm.platforms import current_platform

    positions = json.loads(Path(final, "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    engine = vllm.LLM(
        model=final, dtype="float32", enforce_eager=True, max_model_len=min(positions, LONGEST_SEQUENCE), seed=0
    )
    greedy = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    (output,) = engine.generate([prompt], greedy)
    answer |= {"device": current_platform.device_type, "dtype": "float32"}
    answer |= {"prompt": [*output.prompt_token_ids], "written": [*output.outputs[0].token_ids]}
    answer_file.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _run_vllm(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
