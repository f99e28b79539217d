"""What the rules need to know of a run: where things lie, what a job's parameters are, which records are stale."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import versions
from pipeline.config import Config
from pipeline.step_settings import step_settings


@cache
def _unit_hashes(manifest: Path, changed_nanoseconds: int) -> dict[str, str]:
    """Return the hash of each unit in a manifest, read once as long as it does not change: every unit asks for it."""
    units = json.loads(manifest.read_text(encoding="utf-8"))["units"]
    return {unit: str(entry["sha256"]) for unit, entry in units.items()}


class Dag:
    """The names and parameters of one run's jobs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.run = config.directory.as_posix()
        self.private = (Path(config.run.results).parent / "private" / config.run.name).as_posix()

    def contract(self, stage: str) -> Callable[[Mapping[str, str]], list[str]]:
        """Return the function of a job's wildcards that gives the options of the contract.

        Settings, code and environment: when one of them changes, Snakemake runs the job again, and for no other reason.
        """

        def options(wildcards: Mapping[str, str]) -> list[str]:
            instance = dict(wildcards.items())
            settings, code, environment = self.versions(stage, instance)
            pairs = [f"{key}={value}" for key, value in instance.items()]
            return ["--settings", settings, "--code", code, "--environment", environment, "--instance", *pairs]

        return options

    def versions(self, stage: str, instance: Mapping[str, str]) -> tuple[str, str, str]:
        """Return settings (sorted JSON), code version and environment version of a job."""
        settings = step_settings(self.config, stage, instance).model_dump(mode="json")
        module = f"pipeline.{stage}"
        return (
            json.dumps(settings, sort_keys=True, ensure_ascii=False),
            versions.code_version(module),
            versions.environment_version(module, self.config.run.environment),
        )

    def record(self, stage: str, *wildcards: str) -> str:
        """Return the record's path of a stage, with its wildcards."""
        return f"{self.run}/provenance/records/{self.job(stage, *wildcards)}.json"

    def log(self, stage: str, *wildcards: str) -> str:
        """Return the log's path of a stage, with its wildcards."""
        return f"{self.run}/logs/{self.job(stage, *wildcards)}.log"

    @staticmethod
    def job(stage: str, *wildcards: str) -> str:
        """Return the name of a stage's jobs: the stage and its wildcards."""
        return ".".join([stage, *(f"{{{wildcard}}}" for wildcard in wildcards)])

    def unit_files(self, wildcards: Any) -> list[str]:
        """Return the raw files of one unit of a source."""
        return [str(path) for path in self.config.units(wildcards.source)[wildcards.unit].values()]

    def language_model(self, wildcards: Any) -> list[str]:
        """Return the file of the corpus's language model; none where it is the one of py3langid."""
        model = self.config.corpus[wildcards.corpus].language_model
        return [self.config.resolved("the language model", model.path)] if model is not None else []

    def unit_inputs(self, wildcards: Any) -> list[str]:
        """Return what has to exist before a unit is read: its raw files, or the folder that its part lies in."""
        parts = self.config.source_units(wildcards.source).parts_of(wildcards.unit)
        return self.unit_files(wildcards) if parts is None else [str(parts)]

    def raw_bytes(self, wildcards: Any) -> list[int]:
        """Return the sizes of a job's raw files: one that was replaced may be older than what was made of the first."""
        if hasattr(wildcards, "file"):
            return [Path(self.large_file(wildcards)).stat().st_size]
        files = map(Path, self.unit_files(wildcards))
        return [file.stat().st_size for file in files if file.is_file()]

    def large_file(self, wildcards: Any) -> str:
        """Return the raw file of a source that has this number, to be cut into parts."""
        listed = self.config.source_units(wildcards.source)
        return str(listed.files[listed.large_files[wildcards.file][0]])

    def opt_out(self, wildcards: Any) -> list[str]:
        """Return the opt-out list of a source, if it has one."""
        listed = self.config.source_units(wildcards.source)
        return [listed.place(listed.source.opt_out)] if listed.source.opt_out else []

    def units(self, sources: Iterable[str]) -> list[tuple[str, str]]:
        """Return (source, unit) of the sources, in the order in which every stage reads them."""
        return [(source, unit) for source in sources for unit in self.config.units(source)]

    def corpus_files(self, kind: str, corpus: str) -> list[str]:
        """Return the files (`filtered`, `final`, `signatures`, …) of all units of a corpus."""
        pairs = self.units(self.config.corpus_sources(corpus))
        return [f"{self.run}/corpus/{corpus}/{kind}{source}.{unit}.parquet" for source, unit in pairs]

    def items(self, wildcards: Any) -> list[str]:
        """Return the files of the evaluation items that a corpus must not contain."""
        return [str(path) for _, path in self.config.items(wildcards.corpus)]

    def milestone(self, model: str, step: int | str) -> str:
        """Return the directory of a milestone."""
        return f"{self.run}/models/{model}/milestones/{step}"

    def previous_milestone(self, wildcards: Any) -> list[str]:
        """Return the milestone that a segment starts from; none for the first."""
        milestones = self.config.models[wildcards.model].training.milestones()
        before = [step for step in milestones if step < int(wildcards.step)]
        return [self.milestone(wildcards.model, before[-1])] if before else []

    def scratch(self, wildcards: Any) -> str:
        """Return where a segment's recovery checkpoints lie: those of other code are not continued from."""
        code = versions.code_version("pipeline.pretrain.segment")
        return f"{self.run}/scratch/{wildcards.model}/{wildcards.step}/{code}"

    def milestones(self, model: str) -> list[str]:
        """Return all milestones of a model, the last one last."""
        return [self.milestone(model, step) for step in self.config.models[model].training.milestones()]

    def unit_hash(self, source: str, unit: str) -> str | None:
        """Return the hash of the content of a unit's files, as the source's manifest has it; None before it exists."""
        manifest = Path(self.run) / "sources" / source / "manifest.json"
        if not manifest.is_file():
            return None
        return _unit_hashes(manifest, manifest.stat().st_mtime_ns).get(unit)

    def tokens_hash(self, model: str) -> str | None:
        """Return one hash of the tokens that a model is trained on and of its tokenizer; None before they exist."""
        tokens = self.config.models[model].tokens
        tokenizer = self.config.tokens[tokens].tokenizer
        paths = [
            Path(self.run) / "tokens" / tokens / "index.json",
            Path(self.run) / "tokenizer" / tokenizer / "tokenizer_config.json",
        ]
        if not all(path.is_file() for path in paths):
            return None
        return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:16]

    def evaluated(self) -> list[tuple[str, int]]:
        """Return (model, step) of every milestone that is evaluated."""
        last_only = self.config.evaluation.checkpoints == "final"
        return [
            (name, step)
            for name, model in self.config.models.items()
            for step in (model.training.milestones()[-1:] if last_only else model.training.milestones())
        ]

    def records(self) -> list[str]:
        """Return the records of all jobs before the report, in the order of the chapters."""
        config = self.config
        jobs: list[tuple[str, ...]] = []
        for source in sorted(s.name for s in config.sources):
            jobs += [("sources.split", source, number) for number in config.source_units(source).large_files]
            if config.source(source).dataset is not None:
                jobs.append(("sources.dataset", source))
            jobs += [("sources.fingerprint", source, unit) for unit in config.units(source)]
            jobs.append(("sources.manifest", source))
        for corpus in config.corpus:
            for step in ("filter", "signatures", "drop_duplicates", "decontaminate"):
                jobs += [(f"corpus.{step}", corpus, s, u) for s, u in self.units(config.corpus_sources(corpus))]
            jobs += [(f"corpus.{step}", corpus) for step in ("deduplicate", "ngrams", "statistics", "publish")]
        jobs += [(f"tokenizer.{step}", name) for name in config.tokenizer for step in ("train", "fertility")]
        for name, section in config.tokens.items():
            jobs += [("tokens.shard", name, str(shard)) for shard in range(section.shards)]
            jobs.append(("tokens.index", name))
        for name, model in config.models.items():
            jobs += [("pretrain.segment", name, str(step)) for step in model.training.milestones()]
            jobs.append(("pretrain.export", name))
        jobs += [("evaluate.suites", name, str(step)) for name, step in self.evaluated()]
        jobs.append(("plan.estimate",))
        return [f"{self.run}/provenance/records/{'.'.join(job)}.json" for job in jobs]
