"""The jobs of a dry run after an edit: a hand-written table, exact in both directions."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.conftest import Project
from tests.rules.test_reruns import (
    AFTER_DECONTAMINATION,
    EVALUATION,
    GUIDE,
    MICRO,
    REPORT,
    SUITES,
    TRAINING,
    append,
    new_letter,
    rewrite_in,
    touch,
)


def newer(project: Project, *distributions: str) -> None:
    for name in distributions:
        project.edit("envs/cpu.lock", f"\n{name}==", f"\n{name}==9")


def with_keys(project: Project, *keys: str) -> None:
    project.edit(MICRO, "learning_rate:", "\n      ".join([*keys, "learning_rate:"]))


def _another_platform(project: Project) -> None:
    platforms = project.path("workflow/platforms")
    local = (platforms / "local.yaml").read_text()
    (platforms / "elsewhere.yaml").write_text(local.replace("name: local", "name: elsewhere"))
    append(project.path(MICRO), "platform: elsewhere\n")


# Edits after which nothing runs, and which are therefore tested together.
NOTHING: dict[str, Callable[[Project], object]] = {
    "nothing": lambda p: None,
    "a small raw file touched": lambda p: touch(p.path("config/corpus/nl_gids.jsonl")),
    "a comment in the README": lambda p: append(p.path("README.md"), "\n<!-- seen -->\n"),
    "a comment in the configuration": lambda p: append(p.path(MICRO), "# seen\n"),
    "a comment in a module": lambda p: append(p.path("pipeline/corpus/filter.py"), "\n# seen\n"),
    "a docstring": lambda p: p.edit("pipeline/tokenizer/train.py", '"""', '"""Seen. '),
    "a function that no step calls": lambda p: append(
        p.path("pipeline/corpus/documents.py"), "\n\ndef seen() -> int:\n    return 1\n"
    ),
    "a rule reformatted": lambda p: p.edit(
        "rules/steps.smk", "message: made.message", "message:\n            made.message"
    ),
    "the contract, which runs every step": lambda p: rewrite_in(
        p, "pipeline/job/job_execution.py", "Job.publish_outputs"
    ),
    "the meters": lambda p: rewrite_in(p, "pipeline/energy/meter_recorder.py", "NodeMeter.end"),
    "the order of a command line": lambda p: p.edit(
        "pipeline/workflow/steps/tokenizer_and_tokens.py",
        '(SOURCES_READ, Input("train", TRAIN), TOKENIZER_OF_TOKENS)',
        '(SOURCES_READ, TOKENIZER_OF_TOKENS, Input("train", TRAIN))',
    ),
    "what a job says when it begins": lambda p: p.edit(
        "pipeline/workflow/steps/tokenizer_and_tokens.py", '"Index the token set', '"Count the token set'
    ),
    "a Slurm resource": lambda p: p.edit(
        "rules/steps.smk", "resources: **made.resources", 'resources: **{**made.resources, "runtime": 33}'
    ),
    "how many processes train": lambda p: p.edit(
        "workflow/platforms/local.yaml", "--nproc-per-node=2", "--nproc-per-node=1"
    ),
    "the verifier's code": lambda p: rewrite_in(p, "pipeline/provenance/verify_run.py", "verify_run"),
    "the watchdog of a training": lambda p: rewrite_in(p, "pipeline/pretrain/monitors/watchdog.py", "Watchdog.beat"),
    "its telemetry": lambda p: rewrite_in(p, "pipeline/pretrain/monitors/telemetry.py", "Telemetry.summarize"),
    "its advice on memory": lambda p: rewrite_in(p, "pipeline/pretrain/monitors/memory_estimate.py", "format_advice"),
    "its line for a person": lambda p: rewrite_in(
        p, "pipeline/pretrain/monitors/metrics.py", "MetricsLog.print_progress"
    ),
    "which checkpoints it keeps": lambda p: rewrite_in(p, "pipeline/pretrain/checkpoints/recovery.py", "prune"),
    "libraries that log": lambda p: newer(p, "loguru", "tqdm", "rich"),
    "libraries that draw for others": lambda p: newer(p, "pillow", "markdown", "grpcio", "werkzeug"),
}
PLANNED: dict[str, tuple[Callable[[Project], object], dict[str, int]]] = {
    "that repeated passages stay, as is the default": (
        lambda p: p.edit(
            MICRO, "main: {preset: standard,", "main: {preset: standard, deduplication: {passage_words: null},"
        ),
        REPORT,
    ),
    "that repeated passages are removed": (
        lambda p: p.edit(
            MICRO, "main: {preset: standard,", "main: {preset: standard, deduplication: {passage_words: 20},"
        ),
        {
            **dict.fromkeys(("corpus_signatures", "corpus_deduplicate", "corpus_matches", "corpus_decontaminate"), 4),
            **{"corpus_find_duplicates": 1, **AFTER_DECONTAMINATION, **REPORT},
        },
    ),
    "how a training looks and keeps": (
        lambda p: with_keys(
            p,
            "keep_checkpoints: 5",
            "keep_every: 4",
            "peak_flops_per_second: 1.0e12",
            "checkpoint_every: 7",
            "stability: {hang_seconds: 77, restarts: 9}",
        ),
        {"plan_estimate": 1, **REPORT},  # the plan counts validations and checkpoints
    ),
    "how often it is validated": (
        lambda p: p.edit(MICRO, "validation_every: 4", "validation_every: 2\n      validation_tokens: 300"),
        {"plan_estimate": 1, **REPORT},
    ),
    "that it goes back to a checkpoint": (lambda p: with_keys(p, "stability: {bad_step: rewind}"), TRAINING),
    "how its sums are ordered": (
        lambda p: p.edit(MICRO, "micro_batch_size: 2", "micro_batch_size: 1"),
        {**TRAINING, "plan_estimate": 1},
    ),
    "a formula of the plan": (
        lambda p: rewrite_in(p, "pipeline/plan/training_cost_formulas.py", "model_state_bytes"),
        {"plan_estimate": 1, **REPORT},
    ),
    "a library that draws pages": (
        lambda p: newer(p, "jinja2"),
        {"corpus_publish": 1, **SUITES},
    ),
    "another platform": (
        _another_platform,
        {"plan_estimate": 1, **REPORT},
    ),
    "PUE": (lambda p: append(p.path(MICRO), "energy: {pue: 1.19}\n"), {"plan_estimate": 1, **REPORT}),
    "the license of a source": (
        lambda p: p.edit(MICRO, GUIDE, GUIDE.replace("CC0-1.0", "CC-BY-4.0")),
        {"sources_manifest": 1, "sources_complete": 1, **REPORT},  # later jobs are in test_reruns.py
    ),
    "the holder and the address of all sources": (
        lambda p: p.edit(MICRO, "holder: the authors of Polder", "holder: others, url: 'https://voorbeeld.nl'"),
        {"sources_manifest": 3, "sources_complete": 1, **REPORT},
    ),
    "the provider's name": (
        lambda p: p.edit(MICRO, "seed: 7}", "seed: 7, provider: Somebody}"),
        {"corpus_publish": 1, **REPORT},
    ),
    "the card of the data set": (
        lambda p: append(p.path("pipeline/corpus/data_set/dataset_card.md.jinja"), "seen\n"),
        {"corpus_publish": 1, **REPORT},
    ),
    "the report's code": (lambda p: rewrite_in(p, "pipeline/report/page.py"), REPORT),
    "the report's template": (
        lambda p: append(next(iter(p.path("pipeline/report").glob("page.html*"))), "<!-- seen -->\n"),
        REPORT,
    ),
    "a library's version in the lock": (
        lambda p: p.edit("envs/cpu.lock", "lm-eval==0.4.13", "lm-eval==0.4.14"),
        SUITES,
    ),
    "one evaluation task": (
        lambda p: append(p.path("config/tasks/dutch/polder_nl_kennis.yaml"), "# seen\n"),
        SUITES,
    ),
    "an untrained model to compare with": (
        lambda p: p.edit(MICRO, "untrained: false", "untrained: true"),
        {"evaluate_baselines": 1, **SUITES},
    ),
    "that memorised text is counted": (
        lambda p: p.edit(
            MICRO, "untrained: false", "untrained: false, memorization: {prompt_tokens: 20, continuation_tokens: 20}"
        ),
        {"evaluate_samples": 1, **REPORT},
    ),
    "an evaluation suite beside those that the corpus must not hold": (
        lambda p: p.edit(
            MICRO, "evaluation: {checkpoints", "evaluation: {suites: [dutch, english, safety], checkpoints"
        ),
        {"corpus_count_items": 1, **SUITES},
    ),
    "an experiment, which compares its cells itself": (
        lambda p: append(p.path(MICRO), "experiments: {again: {base: base, seeds: [7, 8]}}\n"),
        {
            **dict.fromkeys(("pretrain_export", "evaluate_suites"), 2),
            **{"pretrain_segment": 4, "plan_estimate": 1, **REPORT},
        },
    ),
    "the learning rate": (
        lambda p: p.edit(MICRO, "learning_rate: 0.003", "learning_rate: 0.002"),
        TRAINING,
    ),
    "a statement of the training loop": (
        lambda p: rewrite_in(p, "pipeline/pretrain/processes/worker.py", "main"),
        TRAINING,
    ),
    "a second model": (
        lambda p: p.path(MICRO).write_text(
            p.path(MICRO)
            .read_text()
            .replace(
                "models:\n",
                "models:\n  second:\n    architecture: {layers: 1, width: 32, heads: 4}\n    training: {"
                "sequence_length: 64, batch_size: 4, micro_batch_size: 2, steps: 2, learning_rate: 0.001}\n",
            )
        ),
        {"pretrain_segment": 1, "pretrain_export": 1, "plan_estimate": 1, **EVALUATION},
    ),
    "a milestone deleted": (
        lambda p: shutil.rmtree(p.results / "models" / "base" / "milestones" / "8"),
        {"pretrain_segment": 1, "pretrain_export": 1, **EVALUATION},
    ),
}


@pytest.mark.slow
def test_dry_run_after_irrelevant_edits_plans_nothing(project: Project) -> None:
    for change in NOTHING.values():
        change(project)
    assert dict(project.planned()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("edit", PLANNED, ids=lambda name: name.replace(" ", "-"))
def test_dry_run_plans_exactly_the_affected_jobs(project: Project, edit: str) -> None:
    change, expected = PLANNED[edit]
    change(project)
    assert dict(project.planned()) == expected


@pytest.mark.slow
def test_dry_run_after_a_label_edit_lists_no_deferred_training(project: Project) -> None:
    def summary_line() -> str:
        return project.run("--dry-run").splitlines()[-1]

    deferred = "These jobs may run after it (about "
    alone = "Only labels of the sources have changed. After them runs: "
    project.edit(MICRO, "holder: the authors of Polder", "holder: others")
    assert summary_line() == f"{alone}corpus.publish (1)"
    project.edit(MICRO, GUIDE, GUIDE.replace("CC0-1.0", "CC-BY-4.0"))
    assert summary_line() == f"{alone}corpus.statistics (1), corpus.publish (1)"
    project.edit(MICRO, GUIDE.replace("CC0-1.0", "CC-BY-4.0"), f"{GUIDE}, license_key: license")
    assert deferred in summary_line() and "corpus.filter (" in summary_line(), "it decides what is allowed"
    project.edit(MICRO, f"{GUIDE}, license_key: license", GUIDE)
    assert summary_line() == f"{alone}corpus.publish (1)"
    new_letter(project)
    assert deferred in summary_line() and "corpus.filter (" in summary_line(), "there is another text"


@pytest.mark.slow
def test_optional_filter_rule_key_plans_the_filter(project: Project) -> None:
    seen = "class Quality(Settings):\n    seen: int | None = None\n"
    project.edit("pipeline/corpus/rules/settings.py", "class Quality(Settings):", seen)
    planned = project.planned()
    assert planned["corpus_filter"] == 4 and planned["corpus_find_duplicates"] == 1
    assert not {"sources_manifest", "corpus_quality", "corpus_ngrams"} & set(planned)
