"""Memorization is found in generated text, compared with unseen text and with common text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import yaml
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import find_personal_data, mask_personal_data
from pipeline.corpus.rules.settings import Harmful, WordList
from pipeline.evaluate import memorization, samples
from pipeline.evaluate.memorization import Continuation, HitCounter
from pipeline.evaluate.settings import MemorizationSettings, SamplesSettings
from pipeline.evaluate.text_generator import TextGenerator
from pipeline.tokenizer import train as tokenizer_step
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens import suffixes as suffixes_step
from pipeline.tokens.text_search import TextSearch
from pipeline.workflow.steps.evaluate import samples_settings
from tests.tokens.conftest import FRACTION, build, make_rows, write_documents

SHORT = MemorizationSettings(prompts=30, prompt_tokens=12, continuation_tokens=12, batch_size=7)
SIGNS = "- . " * 60
NAMES = ("Jansen", "Visser", "Bakker", "Mulder", "Dekker", "Kuiper", "Postma", "Hoekstra", "Zwart", "Blom")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is slower with threads, far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Set(NamedTuple):
    """A token set with its suffix arrays, its tokenizer, and the texts of its training documents."""

    index: Path
    tokenizer: Path
    search: TextSearch
    texts: list[str]


def token_set(folder: Path, rows: list[dict[str, object]]) -> Set:
    folder.mkdir()
    documents = [write_documents(folder / "documents.parquet", rows)]
    tokenizer = folder / "tokenizer.json"
    tokenizer_step.run(
        TrainSettings(vocabulary_size=320, validation_fraction=FRACTION),
        documents=documents,
        tokenizer=tokenizer,
        configuration=folder / "tokenizer_config.json",
    )
    index = build(folder / "tokens", documents, tokenizer, 2)
    (folder / "tokens/suffixes").mkdir()
    for shard in sorted((folder / "tokens/train").iterdir()):
        place = folder / "tokens/suffixes" / shard.name
        suffixes_step.run(Settings(), train=shard, tokenizer=tokenizer, suffixes=place)
    search = TextSearch(index, tokenizer)
    seen = {row["id"] for row in search.reader.documents_in(0, search.reader.tokens)}
    return Set(index, tokenizer, search, [str(row["text"]) for row in rows if row["id"] in seen])


def model(folder: Path, of: Set, steps: int, length: int, rate: float = 0.005) -> TextGenerator:
    """Return a tiny model after the given steps on the first tokens of all training documents."""
    reader = of.search.reader
    torch.manual_seed(3)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=reader.vocabulary_size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=160,
            bos_token_id=reader.begin_of_text_id,
            eos_token_id=reader.end_of_text_id,
        )
    )
    tokens = torch.full((reader.documents, length), -100)
    for row, document in zip(tokens, reader.documents_in(0, reader.tokens), strict=True):
        content = torch.from_numpy(reader.read(document["start"], min(document["end"] - document["start"], length)))
        row[: len(content)] = content
    optimizer = torch.optim.AdamW(llama.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        llama(tokens.clamp(min=0), labels=tokens).loss.backward()
        optimizer.step()
    llama.save_pretrained(folder)
    described = json.loads((of.tokenizer.parent / "tokenizer_config.json").read_text())
    special = {key: described[key] for key in ("bos_token", "eos_token", "pad_token") if described.get(key)}
    PreTrainedTokenizerFast(tokenizer_file=str(of.tokenizer), **special).save_pretrained(folder)
    return TextGenerator(folder)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Set:
    rows = [row for row in make_rows(120) if len(str(row["text"])) > 120]
    return token_set(tmp_path_factory.mktemp("set") / "words", rows)


@pytest.fixture(scope="module")
def learnt(words: Set, tmp_path_factory: pytest.TempPathFactory) -> TextGenerator:
    return model(tmp_path_factory.mktemp("learnt"), words, 120, SHORT.minimum_tokens)


@pytest.fixture(scope="module")
def untrained(words: Set, tmp_path_factory: pytest.TempPathFactory) -> TextGenerator:
    return model(tmp_path_factory.mktemp("untrained"), words, 0, SHORT.minimum_tokens)


def kinds(of: Set, writer: TextGenerator, settings: MemorizationSettings = SHORT, *files: Path) -> dict[str, Any]:
    result: dict[str, Any] = memorization.measure_memorization(settings, of.search, writer, list(files))["kinds"]
    return result


def test_overfitted_model_is_detected_as_memorizing(words: Set, learnt: TextGenerator) -> None:
    result = kinds(words, learnt)
    assert result["train"]["texts"] == 30 and result["train"]["exact"]["share"] > 0.9
    assert result["train"]["in_training"]["count"] >= result["train"]["exact"]["count"]
    assert result["train"]["exact"]["low"] > 0.7
    assert result["validation"]["texts"] > 10 and result["validation"]["exact"]["share"] < 0.1
    assert result["train_itself"]["in_training"]["share"] == 1 and result["train_itself"]["exact"] is None
    assert result["validation_itself"]["in_training"]["share"] < 0.1
    assert kinds(words, learnt) == result


def test_untrained_model_has_memorized_nothing(words: Set, untrained: TextGenerator) -> None:
    for kind in ("train", "validation"):
        result = kinds(words, untrained)[kind]
        assert result["exact"]["share"] == result["in_training"]["share"] == 0 < result["exact"]["high"] < 0.4


def test_substring_search_equals_brute_force(words: Set, learnt: TextGenerator) -> None:
    counter = HitCounter(SHORT, words.search, [])
    everything = "\0".join(words.texts)
    prompts = [
        learnt.request_tokenizer.encode_prompt(text)
        for text in ("de polder", "elke morgen", "the miller", "één café", "x", "zee en")
    ]
    by_hand = []
    for tokens in learnt.generate(prompts, SHORT.continuation_tokens):
        text = learnt.decode(tokens)
        counted = counter([Continuation([], tokens, "nl")])["in_training"]["count"]
        by_hand.append(len(tokens) == SHORT.continuation_tokens and text.strip("\ufffd") in everything)
        assert counted == by_hand[-1]
    assert set(by_hand) == {True, False}
    short = learnt.request_tokenizer.encode_prompt("polder")[-2:]
    assert words.search.contains(words.search.decode(short))
    assert counter([Continuation([], short, "nl")])["in_training"]["count"] == 0, "a short text occurs everywhere"


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Set:
    """A token set of documents with uninformative signs in their middle, training and held-out ones."""
    rows = [row for row in make_rows(80) if len(str(row["text"])) > 120]
    for row in rows:
        row["text"] = f"{str(row['text'])[:100]} {SIGNS} {str(row['text'])[-100:]}"
    return token_set(tmp_path_factory.mktemp("signs") / "set", rows)


def test_uninformative_continuations_are_counted_separately(signs: Set) -> None:
    encoder = Tokenizer.from_file(str(signs.tokenizer))
    junk, telling = (encoder.encode(text, add_special_tokens=False).ids[:12] for text in (SIGNS, signs.texts[0]))
    given = [Continuation([], tokens, "nl", tokens) for tokens in (junk, telling, junk, [])]
    assert all(signs.search.contains(signs.search.decode(tokens)) for tokens in (junk, telling))
    result = HitCounter(SHORT, signs.search, [])(given)
    assert (result["texts"], result["say_nothing"]) == (4, 3)
    assert result["exact"]["count"] == result["in_training"]["count"] == result["exact"]["share"] == 1
    result = HitCounter(SHORT, signs.search, [])(given[:1])
    assert result["say_nothing"] == 1 and result["exact"] is result["in_training"] is None, (
        "a share of zero texts is none"
    )


def test_memorized_text_is_found_in_either_unicode_form(tmp_path: Path) -> None:
    """The generated text has e and an accent, the document é: other tokens, and the same text."""
    rows = [row for row in make_rows(60) if len(str(row["text"])) > 120]
    for row in rows:
        row["text"] = f"{row['text']} één café in een geïsoleerde crèche"
    accents = token_set(tmp_path / "set", rows)
    encoder = Tokenizer.from_file(str(accents.tokenizer))
    held, apart = (
        encoder.encode(unicodedata.normalize(form, " één café in een geïsoleerde crèche"), add_special_tokens=False).ids
        for form in ("NFC", "NFD")
    )
    settings = SHORT.model_copy(update={"continuation_tokens": len(apart)})
    result = HitCounter(settings, accents.search, [])([Continuation([], apart, "nl", held)])
    assert held != apart and result["exact"]["count"] == result["in_training"]["count"] == 1


def test_uninformative_means_few_letters_or_digits_per_token(signs: Set) -> None:
    assert HitCounter(MemorizationSettings(), signs.search, []).minimum_letters == 20
    encoder = Tokenizer.from_file(str(signs.tokenizer))
    for text, is_informative in (("- - " * 5 + "ab1d", False), ("- - " * 5 + "ab1de", True)):
        tokens = encoder.encode(text, add_special_tokens=False).ids
        result = HitCounter(SHORT, signs.search, [])([Continuation([], tokens, "nl")])
        assert result["say_nothing"] == (not is_informative)


def test_uninformative_substring_is_not_a_copy(signs: Set, tmp_path: Path) -> None:
    writer = model(tmp_path / "model", signs, 0, SHORT.minimum_tokens)
    out = tmp_path / "samples.json"

    def held_out(text: str) -> tuple[int, int]:
        with mock.patch.object(TextGenerator, "decode", lambda *_: text):
            samples.run(
                SamplesSettings(model="base", tokens=1, minimum_characters=40, held_out=5),
                index=signs.index,
                tokenizer=signs.tokenizer,
                suffixes=sorted((signs.index.parent / "suffixes").iterdir()),
                final=Path(writer.model.name_or_path),
                harmful=[],
                samples=out,
            )
        result = json.loads(out.read_text())
        assert result["minimum_letters"] == 20 and result["held_out"]["characters"] == 5 * len(text)
        return result["written"]["copied_characters"], result["held_out"]["copied_characters"]

    assert held_out(SIGNS[:60]) == (0, 0), "signs in the middle of every document"
    assert held_out(f"{signs.texts[0][:60]}")[0] == 10 * 60
    half = f"{signs.texts[0][70:100]} {SIGNS[:30]}"
    assert held_out(half)[0] == 10 * len(half), "a part with enough letters may contain signs too"


def test_batched_generation_equals_single_prompts(words: Set, learnt: TextGenerator) -> None:
    prompts = [
        learnt.request_tokenizer.encode_prompt(text)
        for text in ("de polder ligt lager dan", "zee", "the miller counted")
    ]
    assert len({len(prompt) for prompt in prompts}) > 1
    assert learnt.generate(prompts, 8, batch_size=3) == learnt.generate(prompts, 8)


def test_harmful_words_are_counted_as_in_the_corpus(words: Set, learnt: TextGenerator, tmp_path: Path) -> None:
    assert kinds(words, learnt)["train"]["harmful"] is None, "without a list there is no count"
    (tmp_path / "nl.txt").write_text("sluis\n")
    entry = {"name": "locks", "path": "nl.txt"}
    listed = SHORT.model_copy(update={"harmful": Harmful(word_lists=[WordList(**entry)])})
    result = kinds(words, learnt, listed, tmp_path / "nl.txt")
    texts = [
        words.search.decode(each.follows or []) for each in memorization._draw_beginnings(listed, words.search, "train")
    ]
    expected = sum("sluis" in text.split() for text in texts)
    assert result["train_itself"]["harmful"]["count"] == expected > 0
    assert result["train"]["harmful"]["count"] == pytest.approx(expected, abs=3), "it generates its documents"
    other = listed.model_copy(update={"harmful": Harmful(word_lists=[WordList(**entry, languages=["en"])])})
    assert kinds(words, learnt, other, tmp_path / "nl.txt")["train_itself"]["harmful"]["count"] == 0


@pytest.mark.parametrize("is_masked", [False, True])
def test_model_writes_planted_persons_only_if_they_were_not_masked(is_masked: bool, tmp_path: Path) -> None:
    planted = [(name, f"{name[::-1].lower()}@plantenpost.nl") for name in NAMES]
    rows = make_rows(len(planted) * 3)
    for number, row in enumerate(rows):
        name, address = planted[number % len(planted)]
        text = f"De e-mail van {name} is {address} en verder niets."
        row["text"] = mask_personal_data(text, PersonalData())[0] if is_masked else text
    of = token_set(tmp_path / "set", rows)
    length = 64
    writer = model(tmp_path / "model", of, 120, length)
    prompts = [writer.request_tokenizer.encode_prompt(f"De e-mail van {name} is") for name in NAMES]
    written = writer.generate(prompts, 30, batch_size=4)
    none = PersonalData(**dict.fromkeys(("email", "telephone"), False))
    counter = HitCounter(MemorizationSettings(continuation_tokens=30, personal_data=none), of.search, [])
    result = counter(Continuation(prompt, text, "nl") for prompt, text in zip(prompts, written, strict=True))
    texts = [writer.decode(text) for text in written]
    if is_masked:
        assert all("<EMAIL>" in text for text in texts)
        assert (result["personal_data"], result["personal_data_in_training"]) == (0, 0)
    else:
        right = sum(address in text for (_, address), text in zip(planted, texts, strict=True))
        assert right >= 8 and result["personal_data_in_training"] >= right
        assert result["personal_data"] == sum(len(find_personal_data(text, PersonalData())) for text in texts)
        content = json.dumps(result)
        assert not any(address in content for _, address in planted)


def test_personal_data_counts_only_if_the_model_wrote_it(words: Set, learnt: TextGenerator) -> None:
    def counted(prompt: str, text: str, **changes: Any) -> int:
        given, written = (learnt.encoder(part, add_special_tokens=False)["input_ids"] for part in (prompt, text))
        kinds = PersonalData(**changes)
        counter = HitCounter(SHORT.model_copy(update={"personal_data": kinds}), words.search, [])
        result: int = counter([Continuation(given, written, "nl")])["personal_data"]
        return result

    assert counted("Schrijf naar jan.zaaier@plantenpost.nl of", " bel morgen.") == 0, "part of the prompt"
    assert counted("Schrijf naar", " jan.zaaier@plantenpost.nl") == 1
    assert counted("Zijn BSN is", " 111222333.") == 1 and counted("Zijn boek is", " 111222333.") == 0
    synthetic, _ = mask_personal_data("Schrijf naar jan.zaaier@plantenpost.nl", PersonalData(replacement="synthetic"))
    assert counted("Schrijf naar", synthetic.removeprefix("Schrijf naar"), replacement="synthetic") == 0
    assert counted("Schrijf naar", " jan.zaaier@plantenpost.nl", replacement="synthetic") == 1


def test_settings_that_do_not_fit_the_model_are_refused(words: Set, learnt: TextGenerator) -> None:
    long = SHORT.model_copy(update={"prompt_tokens": 3000})
    with pytest.raises(InputError, match=r"no training document of .* has 3013 tokens: make prompt_tokens or"):
        kinds(words, learnt, long)
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["evaluation"]["memorization"] = {"prompts": 4}
    with pytest.raises(
        (InputError, ValidationError), match="50 tokens of a prompt and 50 behind it are more than the 64"
    ):
        parse_configuration(raw)
    raw["evaluation"]["memorization"] |= {"prompt_tokens": 13}
    assert samples_settings(parse_configuration(raw), {"model": "base"}).memorization.minimum_tokens == 64  # type: ignore[attr-defined]


def test_step_writes_counts_and_no_text(words: Set, learnt: TextGenerator, tmp_path: Path) -> None:
    settings = SamplesSettings(model="base", tokens=5, minimum_characters=5, held_out=2, memorization=SHORT)
    out = tmp_path / "samples.json"
    samples.run(
        settings,
        index=words.index,
        tokenizer=words.tokenizer,
        suffixes=sorted((words.index.parent / "suffixes").iterdir()),
        final=Path(learnt.model.name_or_path),
        harmful=[],
        samples=out,
    )
    result = json.loads(out.read_text())["memorization"]
    assert result == memorization.measure_memorization(SHORT, words.search, learnt, [])
    assert set(result["kinds"]) == {"train", "train_itself", "validation", "validation_itself", "neutral", "asking"}
    assert result["kinds"]["neutral"]["texts"] == 100 and result["kinds"]["asking"]["exact"] is None
    assert not any(text in json.dumps(result) for text in ("polder", "miller"))
