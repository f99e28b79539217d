"""The prompts of EuroEval and OLMES equal the published ones, on data in the layout of their data sets."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.api.task import Task

from pipeline.core.errors import InputError
from pipeline.evaluate import suites
from pipeline.evaluate.dataset_mirror import find_data_sets
from pipeline.evaluate.lm_eval_model import load_model
from pipeline.evaluate.settings import KNOWN_SUITES, KnownSuite, RequestSettings, Suite, SuiteSettings, SuitesSettings
from pipeline.evaluate.task_file_reader import list_item_files, list_suite_files
from pipeline.evaluate.task_loader import find_task_sources
from pipeline.evaluate.text_metrics import rename_fields, score_squad

Row = dict[str, Any]
OLMES_IDS = {
    "ARC-Easy": [
        "MCAS_2007_8_5189",
        "Mercury_SC_401169",
        "MCAS_2004_8_27",
        "NYSEDREGENTS_2006_8_10",
        "Mercury_7013388",
    ],
    "ARC-Challenge": ["Mercury_SC_415702", "MCAS_2009_5_6516", "Mercury_7233695", "Mercury_7041615", "MCAS_1998_4_3"],
}


def sentences(count: int, labels: tuple[str, ...], text: str = "Zin {n}\nvan vandaag. ") -> list[Row]:
    return [{"text": text.format(n=n), "label": labels[n % len(labels)]} for n in range(count)]


def questions(count: int) -> list[Row]:
    return [
        {"text": f"Wat is {n}?\nAntwoordopties:\na. een\nb. twee\nc. drie\nd. vier", "label": "abcd"[n % 4]}
        for n in range(count)
    ]


def passages(count: int) -> list[Row]:
    return [
        {
            "id": str(n),
            "context": f"De boot van {n} uur\nvertrekt.",
            "question": f"Wat vertrekt om {n} uur? ",
            "answers": {"text": ["De boot", "een boot"], "answer_start": [0, 0]},
        }
        for n in range(count)
    ]


def tagged(count: int) -> list[Row]:
    """Return sentences with tags, some without an entity and some twice."""
    places = ["B-LOC", "B-ORG", "B-PER", "B-MISC", "O"]
    return [
        {
            "text": "niet gelezen",
            "tokens": ["Gisteren", "voer", "Boot", f"{n - n % 7 // 6}", '"de"', "Rijn", "op", "."],
            "labels": [
                *("O", "O", places[n % 5], places[n % 5].replace("B-", "I-"), "O"),
                *("b-loc" if n % 3 else "O", "O", "O"),
            ],
        }
        for n in range(count)
    ]


def documents(count: int) -> list[Row]:
    return [{"text": f"Regel {n}.\n\n\nNog een regel.", "target_text": f"Regels {n}."} for n in range(count)]


def science(ids: list[str], question: str = "question") -> list[Row]:
    return [
        {
            "id": one,
            question: f"Which one is number {place}?",
            "choices": {"text": ["a stone", "a bird", "a tree"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[place % 3],
        }
        for place, one in enumerate(ids)
    ]


def write_data_set(mirror: Path, name: str, splits: dict[str, list[Row]], config: str = "default") -> None:
    """Write a data set in hub layout: a card with the files of its splits, and JSON lines."""
    folder = mirror / name
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split, rows in splits.items():
        (folder / f"{config}-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.append({"split": split, "path": f"{config}-{split}.jsonl"})
    card = folder / "README.md"
    known = yaml.safe_load(card.read_text().split("---")[1])["configs"] if card.exists() else []
    known.append({"config_name": config, "data_files": files})
    card.write_text(f"---\n{yaml.safe_dump({'configs': known, 'license': 'cc0-1.0'})}---\n")


def write_euroeval_mirror(mirror: Path, asked: int = 4) -> Path:
    """Write the data sets of EuroEval's suites with own rows in their layout, of which so many are asked."""
    correct, more = ("correct", "incorrect"), asked - 4
    data_sets = {
        "EuroEval/scala-nl": sentences(30 + more, correct),
        "EuroEval/dutch-cola": sentences(30 + more, correct),
        "EuroEval/dbrd-mini": sentences(30 + more, ("negative", "positive")),
        "EuroEval/include-nl-mini": questions(20 + more),
        "EuroEval/squad-nl-v2-mini": passages(20 + more),
        "EuroEval/wiki-lingua-nl-mini": documents(10 + more),
        "EuroEval/duidelijke-taal": documents(10 + more),
        "EuroEval/conll-nl-mini": tagged(40 + more),
        "EuroEval/conll-en-mini": tagged(40 + more),
        "EuroEval/scala-en": sentences(30 + more, correct),
        "EuroEval/sst5-mini": sentences(30 + more, ("positive", "neutral", "negative")),
        "EuroEval/life-in-the-uk": questions(20 + more),
        "EuroEval/hellaswag-mini": questions(20 + more),
        "EuroEval/squad-mini": passages(20 + more),
        "EuroEval/cnn-dailymail-mini": documents(10 + more),
    }
    for name, rows in data_sets.items():
        write_data_set(mirror, name, {"train": rows[:-asked], "test": rows[-asked:]})
    return mirror


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate loaded data by test, as an evaluation does: the library identifies a data set by its relative path."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mirror"
    write_euroeval_mirror(folder)
    for config, ids in OLMES_IDS.items():
        write_data_set(
            folder, "allenai/ai2_arc", {"train": science(["other", *ids]), "test": science(["x", "y", "z"])}, config
        )
    return folder


def scored(suite: Suite, milestone: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    """Evaluate a checkpoint on a suite; return the content of `results.json`."""
    suites.evaluate_checkpoint(
        SuitesSettings(suites=[SuiteSettings.model_validate(suite)], model="base", step=0, **settings),
        milestone=milestone,
        tasks=list_suite_files(suite),
        index=milestone / "tokens/index.json",
        baselines=[],
        results=folder / "results.json",
        answers=folder / "items.parquet",
    )
    content: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


def tasks_of(name: KnownSuite, mirror: Path, scratch: Path) -> dict[str, Task]:
    suite = KNOWN_SUITES[name].model_copy(update={"data": str(mirror)})
    given = [path.absolute() for path in list_suite_files(suite)]
    return {source.name: source.load()[source.name] for source in find_task_sources(suite, given, scratch)}


@pytest.fixture
def dutch(mirror: Path, tmp_path: Path) -> dict[str, Task]:
    return tasks_of("euroeval_dutch", mirror, tmp_path)


def prompt_of(task: Task, shots: int = 0) -> str:
    return str(task.fewshot_context(task.eval_docs[0], num_fewshot=shots))


def test_sentence_prompts_equal_those_of_euroeval(dutch: dict[str, Task]) -> None:
    task = dutch["euroeval_scala_nl"]
    start = "Hieronder staan zinnen en of ze grammaticaal correct zijn.\n\n"
    assert prompt_of(task) == f"{start}Zin: Zin 26 van vandaag.\nGrammaticaal correct:"
    assert task.doc_to_choice(task.eval_docs[0]) == ["ja", "nee"]
    assert [task.doc_to_target(doc) for doc in task.eval_docs] == [0, 1, 0, 1]
    shown = prompt_of(task, 12).split("\n\n")
    assert shown[0] + "\n\n" == start and len(shown) == 14
    answers = [part.partition("\nGrammaticaal correct: ")[2] for part in shown[1:-1]]
    assert sorted(answers) == ['{"label": "ja"}'] * 6 + ['{"label": "nee"}'] * 6
    assert shown[1].startswith("Zin: Zin ")
    (asked, *_) = task.construct_requests(task.eval_docs[0], "Zin:")
    assert asked.args == ("Zin:", '{"label": "ja'), "EuroEval's decoder begins the JSON without a space"


def test_question_passage_and_document_prompts_equal_those_of_euroeval(dutch: dict[str, Task]) -> None:
    assert prompt_of(dutch["euroeval_include_nl"]) == (
        "Hieronder staan meerkeuzevragen (met antwoorden).\n\n"
        "Vraag: Wat is 16? Antwoordopties: a. een b. twee c. drie d. vier\nAntwoord:"
    )
    assert prompt_of(dutch["euroeval_squad_nl"], 4).endswith(
        "\nAntwoord in max 3 woorden: De boot\n\n"
        "Tekst: De boot van 16 uur vertrekt.\nVraag: Wat vertrekt om 16 uur?\nAntwoord in max 3 woorden:"
    )
    assert prompt_of(dutch["euroeval_wiki_lingua_nl"]) == (
        "Hieronder volgen documenten met bijbehorende samenvattingen.\n\n"
        "Document: Regel 6.\nNog een regel.\nSamenvatting:"
    )
    assert prompt_of(dutch["euroeval_duidelijke_taal"], 3).count("\nVersimpeling: Regels ") == 3
    assert prompt_of(dutch["euroeval_dbrd"]).startswith(
        'Hieronder volgen documenten en hun sentiment, dat {"label": "negatief"} of {"label": "positief"} kan zijn.'
        "\n\nDocument: "
    )


def test_english_prompts_equal_those_of_euroeval(mirror: Path, tmp_path: Path) -> None:
    english = tasks_of("euroeval_english", mirror, tmp_path)
    assert prompt_of(english["euroeval_scala_en"]) == (
        "The following are sentences and whether they are grammatically correct.\n\n"
        "Sentence: Zin 26 van vandaag.\nGrammatically correct:"
    )
    assert english["euroeval_scala_en"].doc_to_choice(english["euroeval_scala_en"].eval_docs[0]) == ["yes", "no"]
    assert [task.doc_to_target(task.eval_docs[0]) for task in (english["euroeval_sst5"],)] == [2]
    assert prompt_of(english["euroeval_squad"]).endswith("\nAnswer in max 3 words:")
    assert prompt_of(english["euroeval_life_in_the_uk"]).startswith(
        "The following are multiple choice questions (with answers).\n\nQuestion: "
    )
    assert prompt_of(english["euroeval_cnn_dailymail"]).endswith("\nSummary:")


@pytest.fixture
def arc(mirror: Path, tmp_path: Path) -> dict[str, Task]:
    folder = tmp_path / "olmes"
    folder.mkdir()
    for name in ("olmes_arc_easy_cloze", "olmes_arc_easy_mc", "olmes_arc_challenge_mc"):
        text = (Path(KNOWN_SUITES["olmes_core"].folder or "") / f"{name}.yaml").read_text(encoding="utf-8")
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    suite = Suite(name="olmes", language="en", folder=str(folder), data=str(mirror))
    given = [path.absolute() for path in list_suite_files(suite)]
    return {source.name: source.load()[source.name] for source in find_task_sources(suite, given, tmp_path)}


def test_olmes_asks_in_both_forms_with_the_named_examples(arc: dict[str, Task]) -> None:
    cloze, letters = arc["olmes_arc_easy_cloze"], arc["olmes_arc_easy_mc"]
    assert prompt_of(cloze) == "Question: Which one is number 0?\nAnswer:"
    assert cloze.doc_to_choice(cloze.eval_docs[0]) == [" a stone", " a bird", " a tree"]
    assert prompt_of(letters) == "Question: Which one is number 0?\n A. a stone\n B. a bird\n C. a tree\nAnswer:"
    assert letters.doc_to_choice(letters.eval_docs[0]) == [" A", " B", " C"]
    assert prompt_of(cloze, 5).startswith(
        "Question: Which one is number 1?\nAnswer: a bird\n\nQuestion: Which one is number 2?\nAnswer: a tree\n\n"
    )
    assert "Answer: B\n\nQuestion: Which one is number 2?" in prompt_of(letters, 5)
    assert [row["id"] for row in cloze.sampler.df] == OLMES_IDS["ARC-Easy"]
    assert [row["id"] for row in arc["olmes_arc_challenge_mc"].sampler.df] == OLMES_IDS["ARC-Challenge"]


@pytest.mark.parametrize(
    ("task", "row", "prompt", "choices", "target"),
    [
        ("piqa_cloze", {"goal": "Boil water", "sol1": "Use a pan", "sol2": "Use a hat", "label": 0},
         "Goal: Boil water\nAnswer:", [" Use a pan", " Use a hat"], 0),
        ("piqa_mc", {"goal": "Boil water", "sol1": "Use a pan", "sol2": "Use a hat", "label": 1},
         "Goal: Boil water\n A. Use a pan\n B. Use a hat\nAnswer:", [" A", " B"], 1),
        ("social_iqa_cloze", {"context": "An ran.", "question": "Why?", "answerA": "fun", "answerB": "fear",
                              "answerC": "it's late", "label": "3"},
         "Question: An ran. Why?\nAnswer:", [" fun", " fear", " it's late"], 2),
        ("boolq_cloze", {"passage": "Cows -- They eat grass.", "question": "do cows eat grass", "label": 1},
         "Cows -- They eat grass.\nQuestion: do cows eat grass?\nAnswer:", [" yes", " no"], 0),
        ("boolq_mc", {"passage": "Cows -- They eat grass.", "question": "do cows eat grass", "label": 0},
         "Cows -- They eat grass.\nQuestion: do cows eat grass?\n A. yes\n B. no\nAnswer:", [" A", " B"], 1),
        ("hellaswag_cloze", {"activity_label": "Baking", "ctx_a": "A man bakes.", "ctx_b": "he", "label": "1",
                             "endings": ["eats [step] it.", "goes. [title] Home."]},
         "Baking: A man bakes. He", [" eats it.", " goes. Home."], 1),
        ("hellaswag_mc", {"activity_label": "Baking", "ctx_a": "A man bakes.", "ctx_b": "he", "label": "1",
                          "endings": ["eats [step] it.", "goes."]},
         "Baking: A man bakes. He\nChoose the best continuation:\n A. eats it.\n B. goes.\nAnswer:", [" A", " B"], 1),
        ("winogrande_mc", {"sentence": "Jo met Al as _ helped.", "option1": "Jo", "option2": "Al", "answer": "2"},
         "Fill in the blank: Jo met Al as ___ helped.\n A. Jo\n B. Al\nAnswer:", [" A", " B"], 1),
        ("openbookqa_cloze", {"id": "x", "question_stem": "A cow eats", "answerKey": "A ",
                              "choices": {"text": ["grass", "iron"], "label": ["A", "B"]}},
         "Question: A cow eats\nAnswer:", [" grass", " iron"], 0),
        ("commonsense_qa_mc", {"id": "x", "question": "Where is a cow?", "answerKey": "B",
                               "choices": {"text": ["sea", "farm"], "label": ["A", "B"]}},
         "Question: Where is a cow?\n A. sea\n B. farm\nAnswer:", [" A", " B"], 1),
    ],
)  # fmt: skip
def test_olmes_prompt_forms(tmp_path: Path, task: str, row: Row, prompt: str, choices: list[str], target: int) -> None:
    file = Path(KNOWN_SUITES["olmes_core"].folder or "") / f"olmes_{task}.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    fields = config["metadata"]["examples"]["fields"]
    named = config["metadata"]["examples"].pop("sha256", None)
    if named:  # own rows cannot have these hashes
        own = hashlib.sha256("\n".join(str(row[field]) for field in fields).encode()).hexdigest()[:16]
        config["metadata"]["examples"]["sha256"] = [own] * 5
    else:
        config["metadata"]["examples"]["values"] = [row["id"]] * 5
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(config))
    splits = {"train": [row], config["test_split"]: [row]}
    write_data_set(tmp_path / "mirror", config["dataset_path"], splits, config.get("dataset_name", "default"))
    suite = Suite(name="own", language="en", folder=str(tmp_path), data=str(tmp_path / "mirror"))
    given = [path.absolute() for path in list_suite_files(suite)]
    (source,) = find_task_sources(suite, given, tmp_path / "scratch")
    loaded = source.load()[source.name]
    assert prompt_of(loaded) == prompt
    assert loaded.doc_to_choice(loaded.eval_docs[0]) == choices
    assert loaded.doc_to_target(loaded.eval_docs[0]) == target


def test_missing_named_example_is_reported(tmp_path: Path) -> None:
    file = Path(KNOWN_SUITES["olmes_core"].folder or "") / "olmes_arc_easy_mc.yaml"
    (tmp_path / "task.yaml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    write_data_set(
        tmp_path / "mirror", "allenai/ai2_arc", {"train": science(["a"]), "test": science(["b"])}, "ARC-Easy"
    )
    suite = Suite(name="olmes", language="en", folder=str(tmp_path), data=str(tmp_path / "mirror"))
    (source,) = find_task_sources(suite, [path.absolute() for path in list_suite_files(suite)], tmp_path / "scratch")
    missing = (
        "olmes_arc_easy_mc: its data have no few-shot example of id MCAS_2007_8_5189: mirror the revision of the data"
    )
    with pytest.raises(InputError, match=missing):
        source.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fewshot_config": {"sampler": "first_n"}},
            "needs a fewshot_split that is not the test_split, or examples in",
        ),
        ({"num_fewshot": 5}, "num_fewshot: 5, and fewshot_config: samples has 4 examples; write more"),
    ],
)
def test_examples_of_a_mirrored_task_are_sufficient_and_not_items(tmp_path: Path, changes: Row, message: str) -> None:
    config = yaml.safe_load((Path("config/tasks/ntrex") / "ntrex_nl_en_to_english.yaml").read_text(encoding="utf-8"))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(config | changes))
    write_data_set(tmp_path / "mirror", "mteb/NTREX", {"test": [{"nld_Latn": "Ja.", "eng_Latn": "Yes."}] * 6})
    suite = Suite(name="own", language="nl, en", folder=str(tmp_path), data=str(tmp_path / "mirror"))
    (source,) = find_task_sources(suite, [path.absolute() for path in list_suite_files(suite)], tmp_path / "scratch")
    with pytest.raises(InputError, match=message):
        source.load()


def test_suite_without_its_mirror_names_the_command(tmp_path: Path) -> None:
    suite = KNOWN_SUITES["euroeval_dutch"].model_copy(update={"data": str(tmp_path)})
    with pytest.raises(InputError, match=f"copy it with `polder mirror {tmp_path} euroeval_dutch`"):
        list_suite_files(suite)


def test_user_defined_suite_without_its_mirror_names_its_configuration(tmp_path: Path) -> None:
    known = KNOWN_SUITES["euroeval_dutch"]
    own = Suite(name="mine", language="nl", folder=known.folder, data=str(tmp_path))
    with pytest.raises(InputError, match=f"`polder mirror {tmp_path} euroeval_dutch`"):
        list_suite_files(own)
    folder = tmp_path / "tasks"
    shutil.copytree(known.folder or "", folder)
    with pytest.raises(InputError, match=f"`polder mirror {tmp_path} --configuration CONFIG`"):
        list_suite_files(own.model_copy(update={"folder": str(folder)}))
    with pytest.raises(InputError, match="polder mirror FOLDER --configuration CONFIG"):
        list_suite_files(own.model_copy(update={"folder": str(folder), "data": None}))


def test_mirror_command_finds_the_data_sets_of_a_suite() -> None:
    assert ("euroeval_scala_nl", "EuroEval/scala-nl") in find_data_sets(["euroeval_dutch"])
    assert {name for _, name in find_data_sets(["olmes_core"])} >= {"allenai/ai2_arc", "Rowan/hellaswag"}
    own = Suite(name="mine", language="en", folder=KNOWN_SUITES["olmes_core"].folder)
    assert find_data_sets([own]) == find_data_sets(["olmes_core"])


def test_items_of_a_mirror_are_decontaminated(mirror: Path) -> None:
    suite = KNOWN_SUITES["euroeval_dutch"].model_copy(update={"data": str(mirror)})
    results = {(file.task, file.path.name) for file in list_item_files(suite)}
    assert ("EuroEval/scala-nl", "default-test.jsonl") in results and (
        "EuroEval/scala-nl",
        "default-train.jsonl",
    ) in results


def test_altered_file_of_a_mirrored_data_set_is_named(tmp_path: Path, long_milestone: Path) -> None:
    file = Path(KNOWN_SUITES["euroeval_dutch"].folder or "") / "euroeval_scala_nl.yaml"
    (tmp_path / "task.yaml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    rows = sentences(30, ("correct", "incorrect"))
    write_data_set(tmp_path / "mirror", "EuroEval/scala-nl", {"train": rows, "test": rows})
    listed = {"README.md": {"bytes": 1, "sha256": "00"}}
    data_set = {"revision": "c0ffee", "license": None, "files": listed}
    (tmp_path / "mirror/mirror.json").write_text(json.dumps({"data_sets": {"EuroEval/scala-nl": data_set}}))
    suite = Suite(name="own", language="nl", folder=str(tmp_path), data=str(tmp_path / "mirror"))
    settings = RequestSettings(suites=[SuiteSettings.model_validate(suite)])
    with pytest.raises(
        InputError,
        match=r"(README.md is not the file that mirror.json lists|is not listed in mirror.json).*CONFIG` again",
    ):
        suites.answer_suites(settings, load_model(long_milestone / "huggingface", 4), list_suite_files(suite))


def test_squad_scores_compare_words_with_the_best_answer() -> None:
    assert score_squad("The boat, at 9.", ["boat at 9", "a ship"]) == (1.0, 1.0)
    exact, f1 = score_squad("de grote boot", ["de boot", "boot"])
    assert exact == 0 and f1 == pytest.approx(2 * 2 / (3 + 2))
    assert score_squad("", ["boot"]) == (0.0, 0.0)
    assert score_squad("", ["the", "boot"]) == (0.0, 0.0) and score_squad("a", ["the"]) == (1.0, 1.0)
    assert score_squad("vis vis", ["vis"])[1] == pytest.approx(2 / 3)
    assert score_squad("vis vis", ["vis vis boot"])[1] == pytest.approx(2 * 2 / 5)


def test_data_set_fields_are_mapped_to_metric_names() -> None:
    row = {"answers": {"text": ["a", "b"]}, "target_text": "c"}
    result = rename_fields(
        row, {"fields": {"answers": "answers.text", "references": "target_text", "source": "target_text"}}
    )
    assert (result["answers"], result["references"], result["source"]) == (["a", "b"], ["c"], "c")


def test_euroeval_tasks_are_evaluated_with_a_protocol(mirror: Path, long_milestone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name in ("scala_nl", "squad_nl", "wiki_lingua_nl", "conll_nl"):
        text = (Path(KNOWN_SUITES["euroeval_dutch"].folder or "") / f"euroeval_{name}.yaml").read_text(encoding="utf-8")
        (folder / f"{name}.yaml").write_text(re.sub("max_gen_toks: [0-9]+", "max_gen_toks: 4", text), encoding="utf-8")
    suite = Suite(name="euroeval", language="nl", folder=str(folder), data=str(mirror))
    content = scored(suite, long_milestone, tmp_path)
    assert content["not_asked"] == []
    results = {(row["task"].removeprefix("euroeval_"), row["metric"]): row for row in content["tasks"]}
    assert {("scala_nl", "mcc"), ("squad_nl", "squad_f1"), ("squad_nl", "squad_em")} < results.keys()
    signature = results["wiki_lingua_nl", "chrf3pp"]["signature"]
    assert signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:2") and signature.endswith("|beta:3")
    of_squad = [row["metric"] for row in content["tasks"] if row["task"] == "euroeval_squad_nl"]
    assert of_squad == ["squad_f1", "squad_em"], "in the order of the task's metric_list"
    protocols = {row["task"]: row["protocol"] for row in results.values()}
    scala = protocols["euroeval_scala_nl"]
    assert (scala["num_fewshot"], scala["data_set"], scala["examples_available"]) == (12, "EuroEval/scala-nl", 4)
    assert scala["euroeval"] == {"dataset": "scala-nl", "task": "linguistic-acceptability"}
    assert len({one["sha256"] for one in protocols.values()}) == 4
