"""Answer lm-eval's requests with a model that reads the common beginning of several questions once.

lm-eval gives a model each choice of a question in a row of its own, with the question before it again, computes the
logits of all tokens, and takes as many rows at a time however short they are. Here a question is one row, with its
choices behind it, each of which sees the question and itself alone; logits are those of the choices; and a batch is as
many rows as fill the memory that lm-eval's longest batch takes. What is said of a choice is the same to 1e-4 nats,
except where lm-eval asks for other tokens: see `request_tokenizer`.
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
from pipeline.evaluate.items import hash_prompts
from pipeline.evaluate.request_tokenizer import RequestTokenizer
from pipeline.evaluate.task_failures import format_error, gather_from_processes, is_task_error

Work = TypeVar("Work")
Result = TypeVar("Result")
Tokens = tuple[int, ...]
Answer = tuple[float, bool]
"""The log-probability of a continuation in nats, and whether each of its tokens is the likeliest."""
SUPPORTED_MODELS = (LlamaForCausalLM, Qwen3ForCausalLM)
"""Models that multiply their last hidden states by `lm_head`, and do no more; others are asked by lm-eval itself."""
LOGITS_PER_STEP = {"cpu": 2**21, "cuda": 2**27}  # that are computed at a time: of a CPU, as many as its caches hold


class RequestRow(NamedTuple):
    """What a model reads at once: a context and the continuations that are asked behind it."""

    context: Tokens
    continuations: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        """How many tokens are read: of each continuation all but the last, behind which nothing is asked."""
        return len(self.context) + sum(len(continuation) - 1 for continuation in self.continuations)


def build_rows(requests: Sequence[tuple[Any, list[int], list[int]]], max_length: int) -> list[RequestRow]:
    """Return rows that answer all requests, each (key, context, continuation); none is longer than a request may be.

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
    """Return the end of a context that fits before a continuation, whose last token is not read."""
    return tuple(context[max(0, len(context) + len(continuation) - max_length - 1) :])


def build_batches(rows: Sequence[RequestRow], most_tokens: int) -> list[list[RequestRow]]:
    """Return the rows in batches of at most so many tokens, padding included, whatever their order is."""
    batches: list[list[RequestRow]] = []
    for row in sorted(rows, key=lambda row: (-row.length, row)):
        if not batches or (len(batches[-1]) + 1) * batches[-1][0].length > most_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


class Scorer(HFLM):  # type: ignore[misc]
    """A causal model of Hugging Face; where it is one of several processes, each answers a share of the batches."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
        # The softmax in fp32: in bf16 the likelihoods of two choices are often the same number.
        super().__init__(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, softmax_dtype="float32"
        )
        self.request_tokenizer = RequestTokenizer(self.tokenizer)
        self.seed = torch.initial_seed()
        self.truncated: set[tuple[str, str | None]] = set()
        """Prompts, each with the continuation that was asked behind it, that lost their start."""
        self.processes, self.place = 1, 0
        if dist.is_initialized():
            self.processes, self.place = dist.get_world_size(), dist.get_rank()

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        return self.request_tokenizer.prefix_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a prompt, whatever the tokenizer adds; those of the text alone without special ones."""
        tokens = (
            self.request_tokenizer.encode(string)
            if add_special_tokens is False
            else self.request_tokenizer.encode_prompt(string)
        )
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    def tok_batch_encode(
        self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of prompts as one batch, (B, T), and its attention mask."""
        prompts = [self.tok_encode(text, left_truncate_len=left_truncate_len) for text in strings]
        padded = self.tokenizer.pad({"input_ids": prompts}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Answer]:
        """Return what the model says of each continuation after its context; those of one item are split alike."""

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
        batches = build_batches(build_rows(requests, self.max_length), self.batch_size * self.max_length)
        answers: dict[tuple[Tokens, Tokens], Answer] = {}
        for batch, found in zip(batches, self._shared(batches, self._answers), strict=True):
            asked = [(row.context, continuation) for row in batch for continuation in row.continuations]
            answers.update(zip(asked, found, strict=True))
        return [
            answers[truncate_context(context, continuation, self.max_length), tuple(continuation)]
            for _, context, continuation in requests
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text's tokens, in windows of the model's length, as lm-eval cuts them.

        The model reads begin-of-text before the first window. lm-eval also predicts it, where the tokenizer adds it.
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
        """Return what the model writes after each prompt, in the batches of lm-eval: those of one length together."""
        lengths = [len(self.tok_encode(one.args[0])) for one in requests]

        for length, (prompt, how) in zip(lengths, (one.args for one in requests), strict=True):
            if length + normalize_gen_kwargs(how, self.max_gen_toks)["max_gen_toks"] > self.max_length:
                self.truncated.add((prompt, None))

        def key(number: int) -> tuple[str, int, str]:
            prompt, how = requests[number].args
            return repr(sorted(how.items())), -lengths[number], prompt

        chunks: list[list[int]] = []
        for _, of_kind in groupby(sorted(range(len(requests)), key=key), key=lambda number: key(number)[0]):
            numbers = [*of_kind]
            chunks += [numbers[start : start + self.batch_size] for start in range(0, len(numbers), self.batch_size)]
        generate = super().generate_until

        def write(chunk: list[int]) -> list[str]:
            # Of tasks that draw what is written, the same is drawn by any process and behind any other batch.
            torch.manual_seed(int(hash_prompts([[self.seed], [requests[number].args for number in chunk]])[:8], 16))
            return cast(list[str], generate([requests[number] for number in chunk]))

        written = self._shared(chunks, write)
        of_number: dict[int, str] = {}
        for chunk, texts in zip(chunks, written, strict=True):
            of_number.update(zip(chunk, texts, strict=True))
        return [of_number[number] for number in range(len(requests))]

    def is_truncated(self, asked: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether one of the prompts of an example, as lm-eval logs what was asked, lost its start."""
        texts = (tuple(text for text in args if isinstance(text, str)) for args in asked)
        return any((of_one[0], of_one[1] if len(of_one) > 1 else None) in self.truncated for of_one in texts)

    def _shared(self, work: Sequence[Work], do: Callable[[Work], Result]) -> list[Result]:
        """Do this process's share of the work and return what all of them found, in the order of the work."""
        own, failure = [], None
        try:
            own = [do(one) for one in work[self.place :: self.processes]]
        except Exception as error:
            if self.processes == 1 or not is_task_error(error):
                raise
            failure = format_error(error)  # or the others wait for it
        shares = gather_from_processes(own, failure)
        return [shares[number % self.processes][number // self.processes] for number in range(len(work))]

    @torch.no_grad()
    def _answers(self, batch: Sequence[RequestRow]) -> list[Answer]:
        """Return what is said of each continuation of each row, in their order."""
        length = batch[0].length
        token_BT = torch.zeros(len(batch), length, dtype=torch.long)
        position_BT = torch.zeros(len(batch), length, dtype=torch.long)
        # The continuation that a token belongs to: 0 is the context, which all see; padding is nobody's.
        part_BT = torch.full((len(batch), length), -1)
        asked_N: list[int] = []  # places behind which a token is asked, counted over the batch
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
        hidden_ND = self._hidden(token_BT, position_BT, part_BT).flatten(0, 1)[torch.tensor(asked_N).to(self.device)]
        return self._said(hidden_ND, torch.tensor(target_N).to(self.device), sizes)

    def _hidden(self, token_BT: torch.Tensor, position_BT: torch.Tensor, part_BT: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states (B, T, D): a token sees what is before it in the context and its own part."""
        part_BT = part_BT.to(self.device)
        query_BT1, key_B1T = part_BT[:, :, None], part_BT[:, None, :]
        seen_BTT = ((key_B1T == query_BT1) | (key_B1T == 0)).tril()
        mask_B1TT = torch.zeros(seen_BTT.shape, dtype=self.model.dtype, device=self.device)
        mask_B1TT = mask_B1TT.masked_fill(~seen_BTT, torch.finfo(self.model.dtype).min)[:, None]
        found = self.model.model(
            input_ids=token_BT.to(self.device),
            position_ids=position_BT.to(self.device),
            attention_mask=mask_B1TT,
            use_cache=False,
        )
        return cast(torch.Tensor, found.last_hidden_state)

    def _said(self, hidden_ND: torch.Tensor, target_N: torch.Tensor, sizes: list[int]) -> list[Answer]:
        """Return the answers of continuations of so many tokens each, that stand one behind the other."""
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


def load_model(folder: Path, batch_size: int, device: torch.device | None = None) -> Scorer:
    """Load a model in the layout of Hugging Face; without a device of its own, on the first GPU where there is one.

    Raises:
        InputError: it does not load, or its tokenizer has no token for the end of a text, where lm-eval stops writing.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json: give a milestone that holds a model in Hugging Face layout")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"the tokenizer of the model in {folder} has no eos_token: name it in tokenizer_config.json"
            )
        return Scorer(model.to(device), tokenizer, batch_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:300]
        raise InputError(f"the model in {folder} does not load ({problem}); make the milestone again") from None
