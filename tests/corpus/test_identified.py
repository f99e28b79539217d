"""Other languages than Dutch are identified by a capable model, and counted whether kept or not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.documents import LANGUAGE, MIXED_LANGUAGE
from pipeline.corpus.rules.presets import GENRES
from pipeline.corpus.settings import Corpus
from tests.corpus.conftest import TEXTS

# By the labels of GlotLID: the training text of the model, and an unseen text.
REGIONAL = {
    "gos": (
        "Zai haar t mooi veurnkander; hai het ja nait zègd woarom e nait mitgoan wol. Wie goan mörn noar Stad tou mit "
        "de traain. t Wicht kikt deur t glas noar boeten, doar t sneit. Doe hest mie nait heurd, zee Jan, moar k heb "
        "die wel zain. Wel t nait leuft, mout moar ais kieken goan bie t diep, doar liggen de scheuvels nog.",
        "Jan zee dat e mörn nait noar Stad goan wol. Moar zai het hom heurd, en wie goan ja mit traain noar boeten.",
    ),
    "lim": (
        "Veer gaon mörge mèt de trein nao Mestreech, zag ze, mer iers mote veer nog get ete. 't Kèndj haet 't book "
        "neet gelaeze, want 't waas te meug. Gooije middig, wie geit 't mit uch? Ich höb dich gister op de mert "
        "gezeen, mer doe höbs mich neet gehuurd. Dao stóng väöl volk en de fanfaar speulde zoe sjoen.",
        "Ich höb ze gister neet gezeen, mer veer gaon mörge nao de mert. Dao is väöl volk en de fanfaar speult sjoen.",
    ),
    "zea": (
        "Me goeë morrehen nae Vlissienge om vis te kôpen, want d'n boer eit 't zeid. Ze was nie tuus toen a ik kwam, "
        "mae d'r moeder deeë open. 't Weer is nie goed vandaege, de wind kom uut 't westen en 't waoter stae 'ôge. "
        "Ei je d'r nog an 'edocht om de eerpels mee te briengen? Wulder wone al twintig jaer op Wallecheren.",
        "Me goeë nae Vlissienge mae 't weer is nie goed. D'n boer eit 't zeid toen a 't waoter 'ôge stae.",
    ),
    "sco": (
        "A'm gaun tae the toun the morn tae see ma auld faither, for he isnae weel. The weans wis playin ootside till "
        "it wis gey dark, an their mither cried them in for thair tea. Ye dinna ken whit ye're missin, she said, it's "
        "a bonnie glen wi mony a burn rinnin doun the brae. He couldna find his guid shuin onywhaur in the hoose.",
        "The auld man isnae gaun tae the toun the morn. He said ye dinna ken the bonnie glen doun the brae.",
    ),
}
LABELS = {"nl": "nld", "en": "eng", "af": "afr", "fy": "fry", "de": "deu"}
CODES = {"gos": "gos", "lim": "li", "zea": "zea", "sco": "sco"}


@pytest.fixture(scope="module")
def glotlid(tmp_path_factory: pytest.TempPathFactory, classifier: Callable[..., Path]) -> Path:
    """Return a small model with the labels of GlotLID."""
    lines = [f"__label__{LABELS[name[:2]]}_Latn {text}" for name, text in TEXTS.items()]
    lines += [f"__label__{code}_Latn {text}" for code, (text, _) in REGIONAL.items()]
    folder = tmp_path_factory.mktemp("glotlid")
    return classifier(folder / "model.bin", lines, epoch=300, lr=1.0, dim=16, minn=2, maxn=3)


@pytest.fixture
def filtered(chain: Any, glotlid: Path) -> Any:
    """Return the steps with that model, for Dutch and English."""
    sha256 = hashlib.sha256(glotlid.read_bytes()).hexdigest()
    rules = {"minimum_score": 0.4, "mixed_language": 0.2, "quality": None, "repetition": None}
    model = {"path": str(glotlid), "sha256": sha256}
    chain.corpus = Corpus.model_validate({"languages": {"nl": rules, "en": rules}, "language_model": model})
    chain.model = [glotlid]
    return chain


def test_identified_languages_are_counted_even_if_none_is_kept(filtered: Any, as_json_lines: Any) -> None:
    documents = {code: unseen for code, (_, unseen) in REGIONAL.items()}
    documents |= {"fy": TEXTS["fy"], "af": TEXTS["af"], "nl": TEXTS["nl_water"], "en": TEXTS["en_garden"]}
    filtered.filter("s", {"x.jsonl": as_json_lines(documents)})
    filtered.deduplicate(["s"])
    removed = {row["id"].rsplit("/", 1)[1]: row for row in filtered.rows("s.filter")}
    assert {name: row["language"] for name, row in removed.items()} == {**CODES, "fy": "fy", "af": "af"}
    assert {row["reason"] for row in removed.values()} == {LANGUAGE}
    statistics = filtered.statistics(["s"])
    identified = statistics["identified"]
    assert identified["model"] == "model.bin" and identified["minimum_scores"] == {"nl": [0.4], "en": [0.4]}
    sizes = {CODES.get(name, name): len(text.encode()) for name, text in documents.items()}
    assert identified["languages"] == {
        code: {"bytes": size, "documents": 1, "mixed_documents": 0} for code, size in sorted(sizes.items())
    }
    assert sum(sizes.values()) == statistics["totals"]["bytes_in"], "nothing is omitted"
    assert set(statistics["languages"]) == {"nl", "en"}


def test_regional_language_can_be_kept(filtered: Any, as_json_lines: Any) -> None:
    rules = {"minimum_score": 0.4, "quality": None, "repetition": None}
    changed = {"languages": {"gos": rules}, "language_model": filtered.corpus.language_model.model_dump()}
    filtered.corpus = Corpus.model_validate(changed)
    filtered.filter("s", {"x.jsonl": as_json_lines({"gos": REGIONAL["gos"][1], "nl": TEXTS["nl_water"]})})
    assert [(row["id"], row["language"]) for row in filtered.rows("s.filtered")] == [("s/x.jsonl/gos", "gos")]


def test_mixed_documents_are_counted_by_language(filtered: Any, as_json_lines: Any) -> None:
    dutch = "\n".join(text for name, text in TEXTS.items() if name.startswith("nl"))
    english = "\n".join(text for name, text in TEXTS.items() if name.startswith("en"))
    documents = {"mixed": f"{dutch}\n{dutch}\n{english}\n{english[:500]}", "dutch": f"{dutch}\n{dutch}"}
    filtered.filter("s", {"x.jsonl": as_json_lines(documents)})
    filtered.deduplicate(["s"])
    assert [row["reason"] for row in filtered.rows("s.filter")] == [MIXED_LANGUAGE]
    languages = filtered.statistics(["s"])["identified"]["languages"]
    assert languages == {
        "nl": {"documents": 2, "mixed_documents": 1, "bytes": sum(len(text.encode()) for text in documents.values())}
    }


def test_known_model_scores_are_the_default_minimum_scores() -> None:
    model = {"path": "model.bin", "sha256": "0" * 64}
    languages = {"nl": {}, "gos": None, "fy": {"minimum_score": 0.5}, "li": {"words": "spacy"}, "en": {}, "de": {}}
    unknown = Corpus.model_validate({"preset": "gptnl", "languages": {"nl": {}, "li": {}}, "language_model": model})
    assert {rules.minimum_score for rules in unknown.languages.values()} == {0.65}
    known = Corpus.model_validate(
        {"preset": "gptnl", "languages": languages, "language_model": {**model, "known_scores": "glotlid"}}
    )
    scores = {code: rules.minimum_score for code, rules in known.languages.items()}
    assert scores == {"nl": 0.689, "gos": 0.675, "fy": 0.5, "li": 0.3, "en": 0.65, "de": 0.65}
    assert known.languages["li"].words == "spacy" and known.languages["nl"].nordic_pile is not None
    model |= {"known_scores": "glotlid"}
    unset, stated = (Corpus.model_validate({"language_model": model} | one) for one in ({}, {"preset": "genre"}))
    assert unset == stated and unset.rules_by_genre == GENRES
    dialect = Corpus.model_validate({"language_model": model, "languages": {"nl": None, "gos": None}})
    assert {code: rules.minimum_score for code, rules in dialect.rules_by_genre["historical"].items()} == {
        "nl": 0.4,
        "gos": 0.675,
    }
    old = Corpus.model_validate({"preset": "historical", "language_model": model})
    assert old.languages == GENRES["historical"]
    with pytest.raises(ValueError, match="glotlid"):
        Corpus.model_validate({"languages": languages, "language_model": {**model, "known_scores": "another"}})
