"""What the rules need to know of a run: where things lie, what a job's parameters are, which records are stale."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.config.evaluation_items import counted, leaving
from pipeline.core.errors import InputError
from pipeline.core.path_ranges import shorten
from pipeline.job import environments, versions
from pipeline.job.attempt import code_in
from pipeline.job.environments import Environment
from pipeline.workflow.finished_training import Finished, hash_of_tokens
from pipeline.workflow.steps import REPORTED, STEPS, chapter, step_settings


@cache
def _unit_hashes(manifest: Path, changed_nanoseconds: int) -> dict[str, str]:
    """Return the hash of each unit in a manifest, read once as long as it does not change: every batch asks for it."""
    units = json.loads(manifest.read_text(encoding="utf-8"))["units"]
    return {unit: str(entry["sha256"]) for unit, entry in units.items()}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


class Dag:
    """The names and parameters of one run's jobs.

    `in_image` has the environments of all steps where jobs compute in the platform's image, not here.
    """

    def __init__(self, config: Config, in_image: Mapping[str, Environment] | None = None) -> None:
        self.config = config
        self._in_image = in_image
        self.run = config.directory.as_posix()
        self.private = (Path(config.run.results).parent / "private" / config.run.name).as_posix()
        self._versions: dict[tuple[Any, ...], tuple[str, str, str]] = {}
        self.finished = Finished(
            config, lambda model, step: self._planned("pretrain.segment", {"model": model, "step": str(step)})
        )

    def contract(self, step: str) -> Callable[[Mapping[str, str]], list[str]]:
        """Return the function of a job's wildcards that gives the options of the contract.

        Settings, code and environment: when one of them changes, Snakemake runs the job again, and for no other reason.
        """

        def options(wildcards: Mapping[str, str]) -> list[str]:
            instance = dict(wildcards.items())
            settings, code, environment = self.versions(step, instance)
            pairs = [f"{key}={value}" for key, value in instance.items()]
            return ["--settings", settings, "--code", code, "--environment", environment, "--instance", *pairs]

        return options

    def versions(self, step: str, instance: Mapping[str, str]) -> tuple[str, str, str]:
        """Return settings (sorted JSON), code version and environment version of a job.

        Those of all batches of a source are the same, and thousands of jobs ask for them. Finished training that stays
        has those that it was made with.
        """
        if step == "pretrain.segment" and (made := self.finished.kept(instance["model"], int(instance["step"]))):
            return made
        if step == "pretrain.adopt" and (made := self.finished.adopted(instance["model"])):
            return made
        return self._planned(step, instance)

    def _planned(self, step: str, instance: Mapping[str, str]) -> tuple[str, str, str]:
        """Return the same as of today, of finished training too."""
        key = (step, *sorted(pair for pair in instance.items() if pair[0] != "batch"))
        if key not in self._versions:
            settings = step_settings(self.config, step, instance).of_result()
            module = f"pipeline.{step}"
            self._versions[key] = (
                json.dumps(settings, sort_keys=True, ensure_ascii=False),
                versions.code_version(module),
                self._environment_version(step),
            )
        return self._versions[key]

    def _environment_version(self, step: str) -> str:
        if self._in_image:
            return self._in_image[step].version
        return versions.environment_version(f"pipeline.{step}", self.config.run.environment)

    def other_than_lock(self) -> str | None:
        """Return a sentence on a distribution that is missing or not the lock's, where jobs would refuse it."""
        lock, platform = self.config.run.environment, self.config.platform.name
        for step in STEPS:
            found = self._in_image[step] if self._in_image else environments.of_step(step, lock)
            try:
                found.refuse_others(step, lock, platform)
            except InputError as error:
                return str(error)
        return None

    def operation(self, step: str) -> Callable[[Mapping[str, str]], str]:
        """Return the function of a job's wildcards that gives its other settings: a change of these reruns nothing."""

        def options(wildcards: Mapping[str, str]) -> str:
            instance = dict(wildcards.items())
            found = step_settings(self.config, step, instance).of_operation()
            if step == "pretrain.segment":
                found |= self.finished.operation(instance["model"], int(instance["step"]))
            return json.dumps(found, sort_keys=True)

        return options

    def first_twin(self, step: str) -> Callable[[Mapping[str, str]], list[str]]:
        """Return the function that gives a batch of a corpus what the same step wrote for an earlier corpus, if alike.

        With the same settings it does the same with the same source: one of the two waits, and takes over.
        """

        def earlier(wildcards: Mapping[str, str]) -> list[str]:
            wildcards = dict(wildcards.items())
            corpus, source = wildcards["corpus"], wildcards["source"]
            for other in self.config.corpus:
                if other == corpus:
                    break
                instance = {"corpus": other, "source": source}
                read = self.config.reserving() if step == "opt_out.reserved" else self.config.corpus_sources(other)
                if source in read and self.versions(step, instance) == self.versions(step, {**instance, **wildcards}):
                    return [self.batch(step).format(**instance, batch=wildcards["batch"])]
            return []

        return earlier

    def frozen(self) -> dict[str, Any]:
        """Return what this run is now: its configuration, its commit, and the versions of its steps."""
        versions_of = {
            step: {
                "code": versions.code_version(f"pipeline.{step}"),
                "environment": self._environment_version(step),
            }
            for step in STEPS
        }
        return {"configuration": self.config.written(), "versions": versions_of, "git": code_in(Path.cwd())}

    def record(self, step: str) -> str:
        """Return the record's path of a step, with its wildcards; of a unit, whose number %unit stands for."""
        wildcards = ["%unit" if name == "batch" else f"{{{name}}}" for name in STEPS[step].per.wildcards]
        return self._record((step, *wildcards))

    def log(self, step: str) -> str:
        """Return the log's path of a step, with its wildcards."""
        return f"{self.run}/logs/{self._job(step)}.log"

    def step_scratch(self, step: str) -> str:
        """Return the folder in which a step keeps its finished parts until it is done, with its wildcards."""
        return f"{self.run}/scratch/{self._job(step)}"

    def batch(self, step: str) -> str:
        """Return the path of what a batch of a step wrote, with its wildcards; the units' records are their own."""
        return f"{self.run}/provenance/batches/{self._job(step)}.json"

    @staticmethod
    def _job(step: str) -> str:
        return ".".join([step, *(f"{{{name}}}" for name in STEPS[step].per.wildcards)])

    def _record(self, job: tuple[str, ...]) -> str:
        return f"{self.run}/provenance/records/{'.'.join(job)}.json"

    def batches(self, step: str, sources: Iterable[str], corpus: str | None = None) -> list[str]:
        """Return what all batches of a step wrote, of some sources."""
        names = [step] if corpus is None else [step, corpus]
        return [
            f"{self.run}/provenance/batches/{'.'.join([*names, source, batch])}.json"
            for source in sources
            for batch in self.config.batches(source)
        ]

    def corpus_batches(self, step: str, corpus: str) -> list[str]:
        """Return what all batches of a step of a corpus wrote."""
        return self.batches(step, self.config.corpus_sources(corpus), corpus)

    def batch_units(self, wildcards: Any) -> list[str]:
        """Return the units of a batch: their files of the listing, in few words."""
        units = self.config.batches(wildcards.source)[wildcards.batch]
        return shorten(f"{self.run}/sources/{wildcards.source}/listing/{unit}.json" for unit in units)

    def raw_folder(self, wildcards: Any) -> str:
        """Return the folder that the names of a source's raw files are relative to."""
        return str(self.config.source_units(wildcards.source).divided_path()[0])

    def language_model(self, wildcards: Any) -> list[str]:
        """Return the file of the corpus's language model; none where it is the one of py3langid."""
        model = self.config.corpus[wildcards.corpus].language_model
        return [self.config.resolved("the language model", model.path)] if model is not None else []

    def batch_inputs(self, wildcards: Any) -> list[str]:
        """Return what has to exist before a batch is read: its raw files, and the folders that its parts lie in."""
        listed = self.config.source_units(wildcards.source)
        found: dict[str, None] = {}
        for unit in self.config.batches(wildcards.source)[wildcards.batch]:
            parts = listed.parts_of(unit)
            paths = listed.units[unit].values() if parts is None else [parts]
            found |= dict.fromkeys(map(str, paths))
        return [*found]

    def raw_hash(self, source: str, batch: str) -> str:
        """Return one hash of the names and sizes of a batch's raw files: a new one may be older than the old one."""
        listed = self.config.source_units(source)
        return _digest(
            [
                [unit, name, listed.sizes[name] if listed.parts_of(unit) is None else None]
                for unit in listed.batches[batch]
                for name in listed.units[unit]
            ]
        )

    def large_file_bytes(self, wildcards: Any) -> int:
        """Return the size of a file that is cut into parts."""
        return Path(self.large_file(wildcards)).stat().st_size

    def large_file(self, wildcards: Any) -> str:
        """Return the raw file of a source that has this number, to be cut into parts."""
        listed = self.config.source_units(wildcards.source)
        return str(listed.files[listed.large_files[wildcards.file][0]])

    def opt_out(self, wildcards: Any) -> list[str]:
        """Return the opt-out list of a source, if it has one."""
        listed = self.config.source_units(wildcards.source)
        return [listed.place(listed.source.opt_out)] if listed.source.opt_out else []

    def with_same_opt_out(self, wildcards: Any) -> list[str]:
        """Return the other sources that have the opt-out list of a source."""
        lists = {name: self.config.source_units(name) for name in self.config.reserving()}
        places = {name: listed.place(str(listed.source.opt_out)) for name, listed in lists.items()}
        own = places.pop(wildcards.source, None)
        return [name for name, place in places.items() if place == own]

    def reserved_files(self, kind: str, corpus: str) -> list[str]:
        """Return the files of all units of the sources that have an opt-out list, in a folder of a corpus."""
        units = self.units(self.config.reserving())
        return [f"{self.run}/corpus/{corpus}/{kind}{source}.{unit}.parquet" for source, unit in units]

    def forgotten(self) -> list[str]:
        """Return the proofs that what is on opt-out lists is in no corpus; none where no source has a list."""
        return [
            f"{self.run}/corpus/{corpus}/forgotten.json" for corpus in self.config.corpus if self.config.reserving()
        ]

    def remains(self) -> list[str]:
        """Return the file that says where else that still is; none where no source has a list."""
        return [f"{self.run}/report/remains.json"] if self.config.reserving() else []

    def carbon_intensity(self) -> list[str]:
        """Return the table of the grid's intensity over time, where one is configured; it may come after the run."""
        series = self.config.emissions.carbon_intensity_series
        return [series.path] if series and Path(series.path).is_file() else []

    def units(self, sources: Iterable[str]) -> list[tuple[str, str]]:
        """Return (source, unit) of the sources, in the order in which every step reads them."""
        return [(source, unit) for source in sources for unit in self.config.units(source)]

    def corpus_files(self, kind: str, corpus: str) -> list[str]:
        """Return the files (`filtered`, `final`, `signatures`, …) of all units of a corpus."""
        pairs = self.units(self.config.corpus_sources(corpus))
        return [f"{self.run}/corpus/{corpus}/{kind}{source}.{unit}.parquet" for source, unit in pairs]

    def seed_files(self, wildcards: Any) -> list[str]:
        """Return the files that the classifiers of a corpus are trained on."""
        return [str(path) for path in self.config.seed_files(wildcards.corpus)]

    def scores(self, wildcards: Any) -> list[str]:
        """Return what a batch of a corpus waits for so that its documents have scores; nothing where they get none."""
        steps = [step for step, _ in self._scored(wildcards.corpus)]
        return [self.batch(step).format(**dict(wildcards.items())) for step in steps]

    def unit_scores(self, wildcards: Any) -> list[str]:
        """Return the scores of a unit of a corpus, whose number %unit stands for; nothing where it has none."""
        folders = [folder for _, folder in self._scored(wildcards.corpus)]
        return [f"{self.run}/corpus/{wildcards.corpus}/{one}/{wildcards.source}.%unit.parquet" for one in folders]

    def _scored(self, corpus: str) -> list[tuple[str, str]]:
        """Return the steps that score a corpus, and the folders that they write."""
        steps = {"quality": ("corpus.scores", "scores"), "perplexity": ("corpus.perplexity", "perplexity")}
        return [step for score, step in steps.items() if getattr(self.config.corpus[corpus], score)]

    def reading_model(self, wildcards: Any) -> str:
        """Return the model by which a corpus is read, as it was exported."""
        return f"{self.run}/models/{self.config.perplexity(wildcards.corpus).model}/final"

    def tokens_of_reading_model(self, wildcards: Any) -> str:
        """Return the index of the tokens that this model is trained on: what is behind a training waits for it too."""
        tokens = self.config.models[self.config.perplexity(wildcards.corpus).model].tokens
        return f"{self.run}/tokens/{tokens}/index.json"

    def evaluation_of_quality(self, wildcards: Any) -> list[str]:
        """Return what the classifiers of a corpus are worth; nothing where it has none."""
        path = f"{self.run}/corpus/{wildcards.corpus}/quality.json"
        return [path] if self.config.corpus[wildcards.corpus].quality else []

    def equal_keys(self, wildcards: Any) -> list[str]:
        """Return the files of the jobs that share the keys of a corpus; none where finding the copies compares them."""
        jobs = self.config.corpus[wildcards.corpus].deduplication.jobs
        return [f"{self.run}/corpus/{wildcards.corpus}/equal_keys/{share}.parquet" for share in range(jobs) if jobs > 1]

    def leaving_items(self, wildcards: Any) -> list[str]:
        """Return the files of the evaluation items that a corpus must not contain."""
        return [str(file.path) for file in leaving(self.config, wildcards.corpus)]

    def counted_items(self, wildcards: Any) -> list[str]:
        """Return the files of the evaluation items that are only counted in a corpus."""
        return [str(file.path) for file in counted(self.config, wildcards.corpus)]

    def later_suites(self) -> list[str]:
        """Return what was counted of these items, of the corpora where there are some."""
        return [
            f"{self.run}/corpus/{corpus}/later_suites.json"
            for corpus in self.config.corpus
            if counted(self.config, corpus)
        ]

    def milestone(self, model: str, step: int | str) -> str:
        """Return the directory of a milestone."""
        return f"{self.run}/models/{model}/milestones/{step}"

    def baseline(self, wildcards: Any) -> list[str]:
        """Return the files of a baseline, or the milestone of an adopted model, or the first, which has the shape."""
        model = self.config.baselines()[wildcards.baseline]
        if model is None:
            return self.config.baseline_files(wildcards.baseline)
        if self.config.models[root := self.config.root(model)].pretrained:
            return [self.milestone(root, 0)]
        return self.milestones(model)[:1]

    def baselines(self, wildcards: Any) -> list[str]:
        """Return what the baselines of a model answered."""
        names = [name for name, of in self.config.baselines().items() if of in (None, wildcards.model)]
        return [f"{self.run}/baselines/{name}/{file}" for name in names for file in ("items.parquet", "results.json")]

    def previous_milestone(self, wildcards: Any) -> list[str]:
        """Return the milestone that a segment starts from; none where its weights are drawn."""
        section = self.config.models[wildcards.model]
        training = section.training
        step = training.segment_start(int(wildcards.step))
        model = training.start.model if training.start and step == training.first_step else wildcards.model
        return [self.milestone(model, step)] if step or section.pretrained else []

    def scratch(self, wildcards: Any) -> str:
        """Return where a segment's recovery checkpoints lie: those of other code are not continued from."""
        instance = {"model": wildcards.model, "step": wildcards.step}
        return f"{self.run}/scratch/{wildcards.model}/{wildcards.step}/{self.versions('pretrain.segment', instance)[1]}"

    def recovery(self, wildcards: Any) -> str:
        """Return where recovery checkpoints go on a platform with a scratch; the job fills in its $VARIABLES.

        Runs of one name in other folders have other places there.
        """
        scratch = self.config.platform.scratch
        if scratch is None:
            return ""
        run = f"{self.config.run.name}-{_digest(str(Path(self.run).resolve()))[:8]}"
        within = self.scratch(wildcards).removeprefix(f"{self.run}/scratch/")
        filled = scratch.replace("{account}", self.config.slurm.account or "{account}")
        return f"{filled}/polder/{run}/{within}"

    def milestones(self, model: str) -> list[str]:
        """Return all milestones of a model, the last one last."""
        return [self.milestone(model, step) for step in self.config.models[model].training.milestones()]

    def batch_hash(self, source: str, batch: str) -> str | None:
        """Return one hash of what the units of a batch depend on, by the source's manifest; None before it exists."""
        manifest = Path(self.run) / "sources" / source / "manifest.json"
        if not manifest.is_file():
            return None
        known = _unit_hashes(manifest, manifest.stat().st_mtime_ns)
        return _digest([known.get(unit) for unit in self.config.batches(source)[batch]])

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
        return hash_of_tokens(*(hashlib.sha256(path.read_bytes()).digest() for path in paths))

    def unit_records(self) -> list[str]:
        """Return the records of the units, of which no rule knows but their batches."""
        return [
            self._record((name, *unit))
            for name, step in STEPS.items()
            if step.per.units is not None
            for unit in step.per.units(self.config)
        ]

    def all_batches(self) -> list[str]:
        """Return what all batches wrote, in the order of the steps."""
        return [
            f"{self.run}/provenance/batches/{'.'.join([name, *batch])}.json"
            for name, step in STEPS.items()
            if step.per.units is not None
            for batch in step.per.jobs(self.config)
        ]

    def records(self, chapters: Collection[str] = REPORTED) -> list[str]:
        """Return the records of all jobs of some chapters that work on no batch, in the order of the steps."""
        return [
            self._record((name, *job))
            for name, step in STEPS.items()
            if step.per.units is None and chapter(name) in chapters
            for job in step.per.jobs(self.config)
        ]
