"""The part of vLLM that EuroEval and Polder call, with plain Transformers: the likeliest tokens or valid JSON."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

import regex

SPACE = r"[ \n\r\t]*"
TEXT = r'"(?:[^\x00-\x1f"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'


class SamplingParams(types.SimpleNamespace):
    """The settings of a generation, with vLLM's defaults."""

    def __init__(self, **settings: Any) -> None:
        default = {"max_tokens": 16, "stop": [], "logprobs": None, "prompt_logprobs": None, "structured_outputs": None}
        default |= {"ignore_eos": False}
        super().__init__(**default | settings)


class LLM:
    """A model of Transformers.

    Attributes:
        prompts: all prompts that it was given.
        is_constrained: whether it follows the schema of structured outputs.
    """

    def __init__(self, model: str, **_: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model, self.tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
        special = {*self.tokenizer.all_special_ids}
        self.pieces = [
            "" if token in special else self.tokenizer.decode([token]) for token in range(len(self.tokenizer))
        ]
        self.prompts: list[str] = []
        self.is_constrained = True

    def generate(self, prompts: Sequence[str], sampling_params: SamplingParams, **_: Any) -> list[Any]:
        """Return an output in vLLM's form for each prompt."""
        self.prompts += prompts
        return [
            types.SimpleNamespace(
                prompt=prompt,
                prompt_token_ids=self.tokenizer(prompt).input_ids,
                outputs=[self._write(prompt, sampling_params)],
            )
            for prompt in prompts
        ]

    def _write(self, prompt: str, settings: SamplingParams) -> Any:
        import torch

        asked = settings.structured_outputs if self.is_constrained else None
        pattern = regex.compile(schema_pattern(asked.json)) if asked else None
        given, past, text, end = self.tokenizer(prompt).input_ids, None, "", self.tokenizer.eos_token_id
        tokens: list[int] = []
        alternatives = []
        while len(tokens) < settings.max_tokens and not any(stop in text for stop in settings.stop):
            with torch.inference_mode():
                outputs = self.model(torch.tensor([given]), past_key_values=past, use_cache=True)
            said_V, past = outputs.logits[0, -1].log_softmax(dim=-1), outputs.past_key_values
            likeliest = said_V.argsort(descending=True).tolist()
            token = next(one for one in likeliest if pattern is None or self._may_follow(pattern, text, one, end))
            shown = dict.fromkeys([token, *likeliest[: settings.logprobs or 0]])  # the chosen one first, as in vLLM
            alternatives.append(
                {
                    one: types.SimpleNamespace(decoded_token=self.pieces[one], logprob=float(said_V[one]))
                    for one in shown
                }
            )
            tokens.append(token)
            if token == end and not settings.ignore_eos:
                break
            given, text = [token], text + self.pieces[token]
        return types.SimpleNamespace(token_ids=tokens, logprobs=alternatives if settings.logprobs else None)

    def _may_follow(self, pattern: Any, text: str, token: int, end: int) -> bool:
        if token == end:
            return pattern.fullmatch(text) is not None
        piece = self.pieces[token]
        return piece != "" and pattern.fullmatch(text + piece, partial=True) is not None


def schema_pattern(schema: Mapping[str, Any]) -> str:
    """Return the pattern of JSON by a schema of EuroEval, with the white space that xgrammar allows."""
    if schema["type"] == "object":
        values = ((key, schema_pattern(schema["properties"][key])) for key in schema["required"])
        entries = (f'"{regex.escape(key)}"{SPACE}:{SPACE}(?:{value})' for key, value in values)
        return rf"\{{{SPACE}{f'{SPACE},{SPACE}'.join(entries)}{SPACE}\}}"
    if schema["type"] == "array":
        item = schema_pattern(schema["items"])
        more = rf"(?:{SPACE},{SPACE}{item}){{0,{schema['maxItems'] - 1}}}"
        return rf"\[{SPACE}(?:{item}{more})?{SPACE}\]"
    return "|".join(regex.escape(json.dumps(one)) for one in schema["enum"]) if "enum" in schema else TEXT


def install() -> None:
    """Let this module be imported as vLLM."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": LLM, "SamplingParams": SamplingParams},
        "vllm.config": {},
        "vllm.distributed": {},
        "vllm.distributed.parallel_state": dict.fromkeys(
            ("destroy_distributed_environment", "destroy_model_parallel"), lambda: None
        ),
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": None},
        "vllm.sampling_params": {"StructuredOutputsParams": types.SimpleNamespace},
    }
    for name, attributes in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__dict__.update(attributes, __spec__=ModuleSpec(name, None), __path__=[])
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
