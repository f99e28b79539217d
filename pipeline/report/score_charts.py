"""Draw scores over the tokens of a training, and choose the tasks that are shown while a model is small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from pipeline.evaluate.item_results import ANSWER_BITS, ScoreKey
from pipeline.evaluate.language_scores import aggregate_by_language, is_counted
from pipeline.report.charts import Series, draw_line_chart
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.translator import Translator

LEAST_SIGNAL_TO_NOISE = 2.0
"""Of a shown task. FineTasks asks for 20 by the noise over many checkpoints; pure noise of three gives 1 to 2 here."""
TOKEN_UNITS = (("billion tokens", 1e9), ("million tokens", 1e6))
METRICS = {
    "acc": "right answers",
    "acc_norm": "right answers by log-probability per character",
    "acc_slor": "right sentences, corrected for word frequency",
    "answer_bits_per_byte": "bits to encode a byte of the right answer",
    "bits_per_byte": "bits to encode a byte of the text",
    "perplexity": "perplexity of the right endings: as many equally likely tokens",
    "word_perplexity": "perplexity per word: as many equally likely words",
    "byte_perplexity": "perplexity per byte: as many equally likely bytes",
    "claims_found": "share of sentences with most words from one given passage: copying, not truth",
    "bleu": "word sequences as in a reference, 0 to 100",
    "chrf": "character sequences as in a reference, 0 to 100",
    "chrf3pp": "character and word sequences as in a reference, 0 to 100",
    "ter": "edits per 100 words to make the text a reference; lower is better",
    "exact_match": "answers equal to the right one",
    "mcc": "correlation of answers with right answers, -1 to 1; 0 is chance",
    "squad_f1": "words in common with the best right answer",
    "squad_em": "answers equal to a right one, without capitals and punctuation",
    "entity_f1": "named entities with kind and place right, 0 to 1 (F1)",
    "entity_f1_no_misc": "named entities with kind and place right, without unnamed kinds, 0 to 1 (F1)",
    "prompt_level_strict_acc": "answers that follow all of their instructions",
    "inst_level_strict_acc": "instructions that are followed",
    "prompt_level_loose_acc": "answers that follow all of their instructions, first and last line aside",
    "inst_level_loose_acc": "instructions that are followed, first and last line aside",
    "answers_found": "right answers that are in the text",
    "pass_at_1": "programs that pass their tests",
    "sari": "words kept, added and deleted as in references, 0 to 100",
    "sari_13a": "words kept, added and deleted as in references, 0 to 100, as EuroEval counts",
    "rouge_l": "longest common word sequence with a reference",
    "exact_answer": "answers equal to a right one, without articles, capitals and punctuation",
    "citation": "answers that name the right passage and no other",
    "abstention": "answers that abstain exactly where no passage answers",
    "flesch_douma": "readability of Dutch by syllables and words per sentence; higher is easier",
    "flesch_kincaid": "readability of English by syllables and words per sentence, as a school grade",
    "lix": "readability by lengths of words and sentences",
}
"""Metrics in words, by their names in results."""


class ChartedScores(NamedTuple):
    """The results of an evaluated checkpoint, and the tokens that it had seen; None where these are not recorded."""

    step: int
    tokens: int | None
    tasks: list[Json]


class ScoreCharts(NamedTuple):
    """Charts of the mean scores of languages, of the tasks with a signal, and of the other tasks."""

    languages: list[Markup]
    shown: list[Markup]
    folded: list[Markup]
    has_trends: bool


def score_key(task: Json) -> ScoreKey:
    """Return suite, task and metric of a row of results or of trends."""
    return task["suite"], task["task"], task["metric"]


def main_scores(tasks: Sequence[Json]) -> dict[tuple[str, str], Json]:
    """Return the row that stands for each task: the one that counts in the mean of a language, or the first one.

    Rows that do not count are in the order of the task's metric_list.
    """

    def score_row_sort_key(task: Json) -> tuple[bool, bool, str]:
        return not is_counted(task), task["metric"] == ANSWER_BITS, task["metric"] if is_counted(task) else ""

    rows: dict[tuple[str, str], Json] = {}
    for task in sorted(tasks, key=score_row_sort_key):
        rows.setdefault((task["suite"], task["task"]), task)
    return dict(sorted(rows.items()))


def read_checkpoint_scores(reader: RunReader) -> dict[str, list[ChartedScores]]:
    """Return the evaluated checkpoints of each model, the first one first."""
    tokens = {
        metrics.name: {int(line["step"]): line["tokens_seen"] for line in metrics.lines if line.get("tokens_seen")}
        for metrics in reader.metrics
    }
    models: dict[str, list[ChartedScores]] = {}
    for results in reader.evaluation:
        model, step = results.content["model"], int(results.content["step"])
        seen = tokens.get(model, {}).get(step)
        models.setdefault(model, []).append(ChartedScores(step, seen, results.content["tasks"]))
    return models


def draw_score_charts(reader: RunReader, words: Translator) -> ScoreCharts:
    """Return the charts of languages and tasks over the tokens, a line for each model with two checkpoints or more.

    A task is shown if the score of a model grows by more than noise: FineTasks' criteria (Hugging Face, 2024) are that
    scores are in the order of the steps, and signal over noise. Its chart has the first such score; a task without one
    has its main score, and is folded. Without three checkpoints nothing is known, and all are shown.
    """
    gettext = words.gettext
    models = {
        name: checkpoints
        for name, checkpoints in read_checkpoint_scores(reader).items()
        if len(checkpoints) > 1 and all(one.tokens is not None for one in checkpoints)
    }
    largest = max((one.tokens or 0 for checkpoints in models.values() for one in checkpoints), default=0)
    unit, size = next(((unit, size) for unit, size in TOKEN_UNITS if largest >= size), ("tokens", 1.0))
    trends: dict[ScoreKey, dict[str, Json]] = {}
    for row in [row for result in reader.differences for row in result.content.get("trends", [])]:
        if row["model"] in models:
            trends.setdefault(score_key(row), {})[row["model"]] = row

    def draw(title: str, label: str, row_of: Callable[[ChartedScores], Json | None], note: str = "") -> list[Markup]:
        series = [_score_series(name, checkpoints, size, row_of) for name, checkpoints in models.items()]
        lines = [line for line in series if len(line.points) > 1]
        return [draw_line_chart(title, gettext(unit), label, lines, gettext=gettext, note=note)] if lines else []

    charts = ScoreCharts([], [], [], bool(trends))
    tasks = [task for checkpoints in models.values() for one in checkpoints for task in one.tasks]
    common = _common_counted_tasks([one for checkpoints in models.values() for one in checkpoints])
    for language in sorted({task["language"] for task in tasks if (task["suite"], task["task"]) in common}):
        title = words("Mean score: {language}", language=words.language_name(language))
        row_of = partial(_language_row, language, common)
        charts.languages.extend(draw(title, gettext("0: guessing, 100: all right"), row_of))
    for suite_and_task, main in main_scores(tasks).items():
        keys = dict.fromkeys([score_key(main), *(score_key(task) for task in tasks)])
        known = [key for key in keys if key[:2] == suite_and_task and key in trends]
        signal = [key for key in known if any(map(grows_beyond_noise, trends[key].values()))]
        key = (signal or [score_key(main)])[0]
        note = _describe_trends(trends.get(key, {}).values(), words)
        is_shown = signal or score_key(main) not in trends
        label = gettext(METRICS.get(key[2].partition(",")[0], key[2]))
        (charts.shown if is_shown else charts.folded).extend(
            draw(f"{key[1]}: {label}", key[2], partial(_find_score, key), note)
        )
    return charts


def grows_beyond_noise(trend: Mapping[str, Any]) -> bool:
    """Return whether a score grows during training by more than noise."""
    return bool(trend["grows"]) and (trend["signal_to_noise"] or 0.0) >= LEAST_SIGNAL_TO_NOISE


def _score_series(
    name: str, checkpoints: Sequence[ChartedScores], size: float, row_of: Callable[[ChartedScores], Json | None]
) -> Series:
    """Return the line of a model with its band, by millions of tokens or another unit of some size."""
    rows = [((one.tokens or 0) / size, row) for one in checkpoints if (row := row_of(one))]
    known = [(x, row) for x, row in rows if row["value"] is not None]
    band = [(x, row["low"], row["high"]) for x, row in known if row.get("low") is not None]
    return Series(name, [(x, row["value"]) for x, row in known], band)


def _common_counted_tasks(checkpoints: Sequence[ChartedScores]) -> set[tuple[str, str]]:
    """Return the tasks that count in the mean of a language at every checkpoint: means of others are not comparable."""
    counted = [{score_key(task)[:2] for task in one.tasks if is_counted(task)} for one in checkpoints]
    return set.intersection(*counted) if counted else set()


def _language_row(language: str, common: set[tuple[str, str]], checkpoint: ChartedScores) -> Json | None:
    rows = aggregate_by_language([task for task in checkpoint.tasks if score_key(task)[:2] in common])
    return next((row._asdict() for row in rows if row.language == language), None)


def _find_score(key: ScoreKey, checkpoint: ChartedScores) -> Json | None:
    return next((task for task in checkpoint.tasks if score_key(task) == key), None)


def _describe_trends(trends: Iterable[Json], words: Translator) -> str:
    """Return the order and the signal over noise of each model's score in words."""
    figures = [
        (one["model"], *(words.number(one[key], 2) for key in ("rank_correlation", "signal_to_noise")))
        for one in trends
    ]
    texts = [f"{model} {order}, {ratio}" for model, order, ratio in figures]
    return words("order, signal: {texts}", texts="; ".join(texts)) if texts else ""
