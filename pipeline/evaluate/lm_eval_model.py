"""Answer lm-eval's requests with a model that reads the common context of several choices once.

lm-eval repeats the question in a row for each choice, computes the logits of all tokens, and has batches of a fixed
number of rows. Here a question and its choices are one row, in which each choice attends to the question and itself;
only logits of the choices are computed; and a batch fills the memory of lm-eval's longest batch. Log-probabilities are
the same to 1e-4 nats, except where lm-eval uses other tokens: see `request_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3ForCausalLM,
)

from pipeline.core.errors import InputError
from pipeline.evaluate.item_results import hash_prompts
from pipeline.evaluate.request_tokenizer import RequestTokenizer
from pipeline.evaluate.task_failures import format_error, gather_values_across_processes, is_task_error

Work = TypeVar("Work")
Result = TypeVar("Result")
Tokens = tuple[int, ...]
Answer = tuple[float, bool]
"""The log-probability of a continuation in nats, and whether each of its tokens is the likeliest."""
SUPPORTED_MODELS = (LlamaForCausalLM, Qwen3ForCausalLM)
"""Models whose logits are their last hidden states times `lm_head`; others use lm-eval's own code."""
LOGITS_PER_STEP = {"cpu": 2**21, "cuda": 2**27}  # computed at a time; on a CPU, as many as its caches hold


class RequestRow(NamedTuple):
    """A context and its continuations, which the model reads in one row."""

    context: Tokens
    continuations: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        """The number of tokens in the row, without the last one of each continuation, which is only predicted."""
        return len(self.context) + sum(len(continuation) - 1 for continuation in self.continuations)


def merge_requests_by_context(
    requests: Sequence[tuple[Any, list[int], list[int]]], max_length: int
) -> list[RequestRow]:
    """Return rows, up to `max_length`, for all requests (key, context, continuation).

    A context that is too long loses its start, as with lm-eval.
    """
    asked: dict[Tokens, dict[Tokens, None]] = {}
    for _, context, continuation in requests:
        asked.setdefault(truncate_context(context, continuation, max_length), {})[tuple(continuation)] = None
    rows: list[RequestRow] = []
    for before, continuations in asked.items():
        rows.append(RequestRow(before, ()))
        for tokens in continuations:
            if rows[-1].continuations and rows[-1].length + len(tokens) - 1 > max_length:
                rows.append(RequestRow(before, ()))
            rows[-1] = RequestRow(before, (*rows[-1].continuations, tokens))
    return rows


def truncate_context(context: Sequence[int], continuation: Sequence[int], max_length: int) -> Tokens:
    """Return the end of a context that fits before a continuation, without the continuation's last token."""
    return tuple(context[max(0, len(context) + len(continuation) - max_length - 1) :])


def build_batches(rows: Sequence[RequestRow], most_tokens: int) -> list[list[RequestRow]]:
    """Return the rows in batches of at most so many tokens with padding, independently of their order."""
    batches: list[list[RequestRow]] = []
    for row in sorted(rows, key=lambda row: (-row.length, row)):
        if not batches or (len(batches[-1]) + 1) * batches[-1][0].length > most_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


class LmEvalModel(HFLM):  # type: ignore[misc]
    """A causal model of Hugging Face; each of several processes answers a share of the batches."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
        # The softmax in fp32: in bf16 the likelihoods of two choices are often the same number.
        super().__init__(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, softmax_dtype="float32"
        )
        self.request_tokenizer = RequestTokenizer(self.tokenizer)
        self.seed = torch.initial_seed()
        self.truncated: set[tuple[str, str | None]] = set()
        """Truncated prompts, each with its continuation."""
        self.process_count, self.process_index = 1, 0
        if dist.is_initialized():
            self.process_count, self.process_index = dist.get_world_size(), dist.get_rank()

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self.request_tokenizer.prefix_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **_: Any
    ) -> list[int]:
        """Tokenize a prompt, whatever the tokenizer adds; without special tokens, the text alone."""
        tokens = (
            self.request_tokenizer.encode(string)
            if add_special_tokens is False
            else self.request_tokenizer.encode_prompt(string)
        )
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    def tok_batch_encode(
        self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of prompts as one batch, (B, T), with its attention mask."""
        prompts = [self.tok_encode(text, left_truncate_len=left_truncate_len) for text in strings]
        padded = self.tokenizer.pad({"input_ids": prompts}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Answer]:
        """Return the answer for each continuation after its context; those of one item are tokenized together."""

        def item(request: Instance) -> tuple[str | None, int]:
            return request.task_name, id(request) if request.doc_id is None else request.doc_id

        asked: list[tuple[Any, list[int], list[int]]] = []
        for _, of_item in groupby(requests, item):
            texts = [one.args for one in of_item]
            asked += [
                (text, *pair) for text, pair in zip(texts, self.request_tokenizer.encode_pairs(texts), strict=True)
            ]
        return self._loglikelihood_tokens(asked, disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, override_bs: Any = None
    ) -> list[Answer]:
        if any(not continuation for *_, continuation in requests):  # the probability of nothing is 1
            spelled = [one for one in requests if one[2]]
            said = iter(self._loglikelihood_tokens(spelled, disable_tqdm, override_bs) if spelled else ())
            return [next(said) if one[2] else (0.0, True) for one in requests]
        for key, context, continuation in requests:
            if key is not None and len(truncate_context(context, continuation, self.max_length)) < len(context):
                self.truncated.add(key)
        windowed = getattr(self.model.config, "use_sliding_window", False)  # our mask would let it see everything
        if windowed or not isinstance(self.model, SUPPORTED_MODELS):
            return cast(list[Answer], super()._loglikelihood_tokens(requests, disable_tqdm, override_bs))
        batches = build_batches(merge_requests_by_context(requests, self.max_length), self.batch_size * self.max_length)
        answers: dict[tuple[Tokens, Tokens], Answer] = {}
        for batch, batch_answers in zip(batches, self._distribute(batches, self._answer_batch), strict=True):
            asked = [(row.context, continuation) for row in batch for continuation in row.continuations]
            answers.update(zip(asked, batch_answers, strict=True))
        return [
            answers[truncate_context(context, continuation, self.max_length), tuple(continuation)]
            for _, context, continuation in requests
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text's tokens, in lm-eval's windows of the model's length.

        The model reads begin-of-text before the first window. lm-eval also predicts it, if the tokenizer adds it.
        """
        windows = [[make_disjoint_window(window) for window in self._windows(one.args[0])] for one in requests]
        asked = [(None, *window) for of_text in windows for window in of_text]
        answers = iter(self._loglikelihood_tokens(asked))
        return [sum(next(answers)[0] for _ in of_text) for of_text in windows]

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        return cast(
            Iterator[tuple[list[int], list[int]]],
            get_rolling_token_windows(
                token_list=self.request_tokenizer.encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            ),
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate text after each prompt, in batches of similar lengths as with lm-eval."""
        lengths = [len(self.tok_encode(one.args[0])) for one in requests]

        for length, (prompt, how) in zip(lengths, (one.args for one in requests), strict=True):
            if length + normalize_gen_kwargs(how, self.max_gen_toks)["max_gen_toks"] > self.max_length:
                self.truncated.add((prompt, None))

        def batching_sort_key(number: int) -> tuple[str, int, str]:
            prompt, how = requests[number].args
            return repr(sorted(how.items())), -lengths[number], prompt

        chunks: list[list[int]] = []
        for _, of_kind in groupby(
            sorted(range(len(requests)), key=batching_sort_key), key=lambda number: batching_sort_key(number)[0]
        ):
            numbers = [*of_kind]
            chunks += [numbers[start : start + self.batch_size] for start in range(0, len(numbers), self.batch_size)]
        generate = super().generate_until

        def generate_chunk(chunk: list[int]) -> list[str]:
            # With sampling, any process draws the same, whatever the batch before.
            torch.manual_seed(int(hash_prompts([[self.seed], [requests[number].args for number in chunk]])[:8], 16))
            return cast(list[str], generate([requests[number] for number in chunk]))

        written = self._distribute(chunks, generate_chunk)
        of_number: dict[int, str] = {}
        for chunk, texts in zip(chunks, written, strict=True):
            of_number.update(zip(chunk, texts, strict=True))
        return [of_number[number] for number in range(len(requests))]

    def is_truncated(self, asked: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether one of the prompts of an example, as logged by lm-eval, was truncated."""
        texts = (tuple(text for text in args if isinstance(text, str)) for args in asked)
        return any((one[0], one[1] if len(one) > 1 else None) in self.truncated for one in texts)

    def _distribute(self, work: Sequence[Work], do: Callable[[Work], Result]) -> list[Result]:
        """Do this process's share of the work; return the results of all processes in the order of the work."""
        own, failure = [], None
        try:
            own = [do(one) for one in work[self.process_index :: self.process_count]]
        except Exception as error:
            if self.process_count == 1 or not is_task_error(error):
                raise
            failure = format_error(error)  # else the others wait for it
        shares = gather_values_across_processes(own, failure)
        return [shares[number % self.process_count][number // self.process_count] for number in range(len(work))]

    @torch.no_grad()
    def _answer_batch(self, batch: Sequence[RequestRow]) -> list[Answer]:
        """Return the answer for each continuation of each row, in order."""
        length = batch[0].length
        token_BT = torch.zeros(len(batch), length, dtype=torch.long)
        position_BT = torch.zeros(len(batch), length, dtype=torch.long)
        # The continuation of each token: 0 is the context, which all attend to; -1 is padding.
        part_BT = torch.full((len(batch), length), -1)
        asked_N: list[int] = []  # positions whose next token is predicted, counted over the batch
        target_N: list[int] = []
        sizes: list[int] = []
        for number, row in enumerate(batch):
            start, before = len(row.context), number * length
            tokens, positions, parts = [*row.context], [*range(start)], [0] * start
            for part, continuation in enumerate(row.continuations, start=1):
                read = len(continuation) - 1
                asked_N += [before + start - 1, *range(before + len(tokens), before + len(tokens) + read)]
                tokens += continuation[:-1]
                positions += range(start, start + read)
                parts += [part] * read
                target_N += continuation
                sizes.append(len(continuation))
            for of_all, of_row in ((token_BT, tokens), (position_BT, positions), (part_BT, parts)):
                of_all[number, : len(of_row)] = torch.tensor(of_row)
        hidden_ND = self._hidden_states(token_BT, position_BT, part_BT).flatten(0, 1)[
            torch.tensor(asked_N).to(self.device)
        ]
        return self._score_continuations(hidden_ND, torch.tensor(target_N).to(self.device), sizes)

    def _hidden_states(self, token_BT: torch.Tensor, position_BT: torch.Tensor, part_BT: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states (B, T, D); a token attends to earlier ones in the context and its own part."""
        part_BT = part_BT.to(self.device)
        query_BT1, key_B1T = part_BT[:, :, None], part_BT[:, None, :]
        seen_BTT = ((key_B1T == query_BT1) | (key_B1T == 0)).tril()
        mask_B1TT = torch.zeros(seen_BTT.shape, dtype=self.model.dtype, device=self.device)
        mask_B1TT = mask_B1TT.masked_fill(~seen_BTT, torch.finfo(self.model.dtype).min)[:, None]
        outputs = self.model.model(
            input_ids=token_BT.to(self.device),
            position_ids=position_BT.to(self.device),
            attention_mask=mask_B1TT,
            use_cache=False,
        )
        return cast(torch.Tensor, outputs.last_hidden_state)

    def _score_continuations(self, hidden_ND: torch.Tensor, target_N: torch.Tensor, sizes: list[int]) -> list[Answer]:
        """Return the answers for consecutive continuations of these sizes."""
        log_probabilities, likeliest = [], []
        step = max(1, LOGITS_PER_STEP[self.device.type] // self.model.config.vocab_size)
        for hidden_nD, target_n in zip(torch.split(hidden_ND, step), torch.split(target_N, step), strict=True):
            logits_nV = self.model.lm_head(hidden_nD)
            asked_n = logits_nV.gather(-1, target_n[:, None])[:, 0]
            log_probabilities.append((asked_n.double() - torch.logsumexp(logits_nV.float(), dim=-1)).cpu())
            likeliest.append((logits_nV.argmax(dim=-1) == target_n).cpu())
        parts = zip(
            torch.split(torch.cat(log_probabilities), sizes), torch.split(torch.cat(likeliest), sizes), strict=True
        )
        return [(float(said_T.sum()), bool(is_likeliest_T.all())) for said_T, is_likeliest_T in parts]


def load_model(folder: Path, batch_size: int, device: torch.device | None = None) -> LmEvalModel:
    """Load a model in the layout of Hugging Face, by default onto the first GPU if there is one.

    Raises:
        InputError: it does not load, or its tokenizer has no end-of-text token, at which lm-eval stops.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: give a milestone with a model in Hugging Face layout")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"the tokenizer of the model in {folder} has no eos_token: name it in tokenizer_config.json"
            )
        return LmEvalModel(model.to(device), tokenizer, batch_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:300]
        raise InputError(f"the model in {folder} does not load ({problem}); make the milestone again") from None
