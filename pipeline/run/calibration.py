"""What a forecast is made from: the work of the planned run, and of finished small runs work, seconds and joules.

Work is counted from what is known before anything runs, and of both in the same way: bytes of the raw files as they
lie on disk up to the tokens, floating-point operations of training, parameters of models that are exported, and of
those that are evaluated, once for each milestone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.energy.figures import ACCOUNT, Account, JobFigure, read_account, together
from pipeline.ground.errors import InputError
from pipeline.ground.hashing import sha256_of
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.plan.settings import CalibrationRun, ForecastPlan, PlannedWork, StepCost
from pipeline.run.config import Config, load
from pipeline.run.items import counted
from pipeline.sources.units import PARTS

Raw = Mapping[str, float]
BYTES, FLOP, PARAMETERS = "bytes of raw text", "FLOP", "parameters"
REPORT_RECORD = "provenance/records/report.page.json"


class Work(NamedTuple):
    """How much of what a step does, by the configuration and the raw bytes of each source; None: no such jobs."""

    unit: str
    amount: Callable[[Config, Raw], float | None]


def _sources(config: Config, raw: Raw) -> float:
    return sum(raw[source.name] for source in config.sources)


def _reserving(config: Config, raw: Raw) -> float | None:
    return sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _corpus(config: Config, raw: Raw, name: str) -> float:
    return sum(raw[source] for source in config.corpus_sources(name))


def _corpora(config: Config, raw: Raw) -> float:
    return sum(_corpus(config, raw, name) for name in config.corpus)


def _reserved(config: Config, raw: Raw) -> float | None:
    return len(config.corpus) * sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _forgotten(config: Config, raw: Raw) -> float | None:
    return _corpora(config, raw) if config.reserving() else None


def _divided(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name, of in config.corpus.items() if of.deduplication.jobs > 1) or None


def _scored(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("quality")) or None


def _read_by_model(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("perplexity")) or None


def _later_suites(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.corpus if counted(config, name)) or None


def _tokenizers(config: Config, raw: Raw) -> float:
    return sum(min(_corpus(config, raw, section.corpus), section.sample_bytes) for section in config.tokenizer.values())


def _tokens(config: Config, raw: Raw) -> float:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values())


def _sorted(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values() if section.suffixes) or None


def _vocabulary(config: Config, model: str) -> int:
    return config.tokenizer[config.tokens[config.models[model].tokens].tokenizer].vocabulary_size


def _parameters(config: Config, model: str) -> float:
    return parameter_count(config.models[model].architecture, _vocabulary(config, model))


def _training(config: Config, raw: Raw) -> float | None:
    total = 0.0
    for name, model in config.models.items():
        t = model.training
        per_token = flops_per_token(model.architecture, _vocabulary(config, name), t.sequence_length)
        total += t.steps * t.batch_size * t.sequence_length * per_token
    return total or None


def _exported(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name in config.models) or None


def _searched(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name in config.searched_models()) or None


def _evaluated(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name, _ in config.evaluated()) or None


def _baselines(config: Config, raw: Raw) -> float | None:
    """A baseline in a folder counts by its bytes, two of them for a parameter."""
    sizes = [
        config.baseline_bytes(name) / 2 if model is None else _parameters(config, model)
        for name, model in config.baselines().items()
    ]
    return sum(sizes) or None


# In the order of the steps. Of cut files and of data sets the planned run has jobs only where it has such sources.
WORK: dict[str, Work] = {
    "sources.split": Work(BYTES, _sources),
    "sources.dataset": Work(BYTES, _sources),
    "sources.listing": Work(BYTES, _sources),
    "sources.fingerprint": Work(BYTES, _sources),
    "opt_out.entries": Work(BYTES, _reserving),
    "sources.manifest": Work(BYTES, _sources),
    "corpus.filter": Work(BYTES, _corpora),
    # The seeds of the classifiers are taken to be those of the calibration runs, and so is the model that reads.
    "corpus.quality": Work(BYTES, _scored),
    "corpus.scores": Work(BYTES, _scored),
    "corpus.perplexity": Work(BYTES, _read_by_model),
    "corpus.signatures": Work(BYTES, _corpora),
    "opt_out.reserved": Work(BYTES, _reserved),
    "corpus.equal_keys": Work(BYTES, _divided),
    "corpus.find_duplicates": Work(BYTES, _corpora),
    "corpus.deduplicate": Work(BYTES, _corpora),
    "corpus.ngrams": Work(BYTES, _corpora),
    "corpus.matches": Work(BYTES, _corpora),
    "corpus.find_items": Work(BYTES, _corpora),
    "corpus.decontaminate": Work(BYTES, _corpora),
    "corpus.count_items": Work(BYTES, _later_suites),
    "corpus.statistics": Work(BYTES, _corpora),
    "corpus.publish": Work(BYTES, _corpora),
    "opt_out.forgotten": Work(BYTES, _forgotten),
    "tokenizer.train": Work(BYTES, _tokenizers),
    "tokenizer.fertility": Work(BYTES, _tokenizers),
    "tokens.shard": Work(BYTES, _tokens),
    "tokens.suffixes": Work(BYTES, _sorted),
    "tokens.index": Work(BYTES, _tokens),
    "pretrain.segment": Work(FLOP, _training),
    "pretrain.export": Work(PARAMETERS, _exported),
    "evaluate.suites": Work(PARAMETERS, _evaluated),
    "evaluate.baselines": Work(PARAMETERS, _baselines),
    "evaluate.samples": Work(PARAMETERS, _searched),
    "evaluate.differences": Work(PARAMETERS, _evaluated),
}


def forecast_plan(config: Config) -> ForecastPlan | None:
    """Return what the run's forecast is made from; None where the configuration names no calibration runs.

    Raises:
        InputError: a calibration run is missing, not finished, damaged, or the planned run itself.
    """
    folders = config.emissions.calibration
    if not folders:
        return None
    for folder in folders:
        if Path(folder).resolve() == config.directory.resolve():
            raise InputError(f"energy.calibration names {folder}, which is this run itself: name smaller runs")
    return ForecastPlan(runs=[calibration_run(folder) for folder in folders], work=_planned(config))


def _planned(config: Config) -> dict[str, PlannedWork]:
    """Return the work of each step that the planned run has jobs of."""
    fetched = sorted(source.name for source in config.sources if source.dataset is not None)
    sizes = {
        source.name: float(sum(config.source_units(source.name).sizes.values()))
        for source in config.sources
        if source.dataset is None
    }
    without = set() if fetched else {"sources.dataset"}
    if not any(config.source_units(name).large_files for name in sizes):
        without.add("sources.split")
    reason = f"the bytes of a data set ({', '.join(fetched)}) are not known before it is fetched: name a path of files"
    found = {}
    for step, work in WORK.items():
        amount = work.amount(config, {**dict.fromkeys(fetched, 0.0), **sizes})
        if amount is None or step in without:
            continue
        unknown = bool(fetched) and work.unit == BYTES
        found[step] = PlannedWork(
            amount=None if unknown else amount, unit=work.unit, refused=reason if unknown else None
        )
    return found


def calibration_run(folder: str) -> CalibrationRun:
    """Return what a finished run tells of each of its steps.

    Raises:
        InputError: it is missing, not finished, or damaged; the sentence names the folder.
    """
    record = Path(folder, REPORT_RECORD)
    return _read(folder, record.stat().st_mtime_ns if record.is_file() else None)


@cache
def _read(folder: str, changed_nanoseconds: int | None) -> CalibrationRun:
    """Return a calibration run, read once as long as its report stays the same."""
    run = Path(folder)
    if not run.is_dir():
        raise _refusal(folder, "there is no such folder: name the folder of a finished run, such as results/NAME")
    if changed_nanoseconds is None or not (run / ACCOUNT).is_file():
        missing = ACCOUNT if changed_nanoseconds is not None else REPORT_RECORD
        raise _refusal(
            folder, f"it has no {missing}, so it is no finished run: finish it with snakemake, or leave it out"
        )
    try:
        record = json.loads((run / REPORT_RECORD).read_bytes())
        written = {output["path"]: output["sha256"] for output in record["outputs"]}
        frozen = json.loads((run / record["frozen"]["path"]).read_bytes())["configuration"]
        if written.get(ACCOUNT) != sha256_of(run / ACCOUNT):
            raise InputError(f"its {ACCOUNT} is not the one that its report was written with")
        account, config = read_account(run), load(frozen)
        raw = {source.name: _raw_bytes(run, source.name) for source in config.sources}
        steps = {} if account is None else _steps(folder, account, config, raw)
    except InputError as error:
        raise _refusal(folder, f"{error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        words = f"{type(error).__name__}: {error}"
        raise _refusal(folder, f"it cannot be read as a finished run ({words}): make its report again") from None
    if account is None or not steps:
        raise _refusal(folder, f"its {ACCOUNT} has no finished job: leave it out")
    return CalibrationRun(folder=folder, platform=config.platform.name, known=account.finished.label, steps=steps)


def _refusal(folder: str, reason: str) -> InputError:
    return InputError(f"energy.calibration: {folder}: {reason}")


def _raw_bytes(run: Path, source: str) -> float:
    """Return the bytes of a source's raw files: parts of a cut file count as the file, which may be compressed."""
    manifest = json.loads((run / "sources" / source / "manifest.json").read_bytes())
    whole = (unit["files"] for number, unit in manifest["units"].items() if int(number) < PARTS)
    size = sum(file["bytes"] for files in whole for file in files)
    for path in sorted((run / "provenance/records").glob(f"sources.split.{source}.*.json")):
        size += sum(file["bytes"] for file in json.loads(path.read_bytes())["inputs"])
    return float(size)


def _steps(folder: str, account: Account, config: Config, raw: Raw) -> dict[str, StepCost]:
    """Return what each step did and took, by its jobs whose outputs stand."""
    jobs: dict[str, dict[str, JobFigure]] = {}
    for name, job in account.jobs.items():
        if job.fate == "finished" and job.step in WORK:
            jobs.setdefault(job.step, {})[name] = job
    found = {}
    for step, of_step in jobs.items():
        amount = WORK[step].amount(config, raw)
        figure = together(of_step.values())
        unknown = sum(not job.is_known for job in of_step.values())
        found[step] = StepCost(
            work=amount or 0.0,
            seconds=sum(_seconds(Path(folder), name) for name in of_step),
            joules=figure.joules,
            low_joules=figure.low_joules,
            high_joules=figure.high_joules,
            refused=f"{folder} does not know the energy of {unknown} of {len(of_step)} jobs of {step}: take another run"
            if unknown
            else None,
        )
    return found


def _seconds(run: Path, attempt: str) -> float:
    """Return the seconds that an attempt took."""
    path = run / "provenance" / "attempts" / f"{attempt}.json"
    if not path.is_file():
        raise InputError(f"provenance/attempts/{attempt}.json is missing, so nobody knows how long that job took")
    content: dict[str, Any] = json.loads(path.read_bytes())
    return float(content["wall_seconds"])
