"""The sections that describe a run, and what they say of one another by names alone, without a look at any file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from pipeline.config.configuration_errors import NAME
from pipeline.config.platforms import JobOptions, PartitionKind, Platform
from pipeline.core.settings import Settings
from pipeline.corpus.settings import Corpus, Perplexity
from pipeline.energy.settings import Energy
from pipeline.evaluate.settings import ADOPTED, UNTRAINED, Evaluation
from pipeline.experiment.settings import Experiment
from pipeline.interleaved.settings import Interleaved
from pipeline.pretrain.processes.launch_command import launcher_name
from pipeline.pretrain.settings import Model
from pipeline.provenance.settings import Provenance
from pipeline.report.settings import Disclosure, Report
from pipeline.sources.settings import Source
from pipeline.sources.spdx_license_parser import canonicalize_spdx_expression
from pipeline.tokenizer.settings import Tokenizer
from pipeline.tokens.settings import Tokens


class Slurm(Settings):
    """How a run uses Slurm. None of it reaches a step, so a change reruns nothing."""

    account: str | None = Field(
        default=None, pattern=r"^[\w.@+-]+$", description="who pays; none takes the user's default account"
    )
    partitions: dict[PartitionKind, JobOptions] = Field(
        default={}, description="options of jobs by partition; each comes before the same key of the platform's file"
    )
    nodes: int = Field(default=1, ge=1, description="that a model is trained on, at most; no result depends on it")
    evaluation_nodes: int = Field(
        default=0, ge=0, description="whole nodes that a checkpoint is evaluated on; 0 takes one device of a node"
    )
    queue: int = Field(default=100, ge=1, description="most jobs in Slurm's queue at once")
    start_minutes: int = Field(
        default=1440, ge=1, description="how long a job may wait for its start before the run says so"
    )
    warning_seconds: int = Field(
        default=300,
        ge=10,
        description="before its time limit a training is warned; must suffice for a step and a checkpoint",
    )


Name = Annotated[str, Field(pattern=NAME)]


class Run(Settings):
    """The run itself."""

    name: str = Field(pattern=NAME, description="the name of the run and of its folder")
    seed: int = Field(default=42, ge=0, description="seed of weights, data order and samples")
    results: str = Field(default="results", description="a folder; letters, digits and ._+-/ alone")
    environment: Literal["cpu", "cuda", "rocm"] = Field(
        default="cpu", description="which lock is installed; cuda and rocm need a platform with GPUs"
    )
    protected_device_hours: float = Field(
        default=1.0, ge=0, description="finished training of a model that took as many is not thrown away unasked"
    )
    retrain: list[Name] = Field(default=[], description="models whose finished training may be thrown away")
    provider: str | None = Field(
        default=None, description="who is responsible for the model, as crate, card and papers name it"
    )
    provider_url: str | None = Field(default=None, pattern=r"^https?://\S+$", description="the provider's page")
    contact: str | None = Field(default=None, description="where a person can ask to be left out")

    @field_validator("results")
    @classmethod
    def _check_results_folder(cls, results: str) -> str:
        """The folder is part of command lines and rules, where other characters have a meaning."""
        if not re.fullmatch(r"[\w./+-]+", results):
            raise ValueError(f"{results!r} has other characters than letters, digits and ._+-/: choose another folder")
        return results


class Sections(Settings):
    """One run: sources, corpora, tokenizers, token sets, models, evaluation, energy, report, Slurm."""

    run: Run
    data: str | None = Field(default=None, description="a folder that `{data}` in the paths below stands for")
    platform: Platform = Platform()
    sources: list[Source] = Field(min_length=1)
    allowed_licenses: list[str] | None = Field(default=None, description="SPDX; none allows what the sources declare")
    corpus: dict[Name, Corpus] = {"main": Corpus()}
    interleaved: dict[Name, Interleaved] = {}
    tokenizer: dict[Name, Tokenizer] = {"main": Tokenizer()}
    tokens: dict[Name, Tokens] = {"main": Tokens()}
    models: dict[Name, Model] = {}
    experiments: dict[Name, Experiment] = {}
    evaluation: Evaluation = Evaluation()
    energy: Energy = Energy()
    provenance: Provenance = Provenance()
    report: Report = Report()
    disclosure: Disclosure = Disclosure()
    slurm: Slurm = Slurm()

    @field_validator("allowed_licenses")
    @classmethod
    def _canonicalize_licenses(cls, licenses: list[str] | None) -> list[str] | None:
        return licenses and sorted({canonicalize_spdx_expression(license) for license in licenses})

    @field_validator("tokenizer")
    @classmethod
    def _expand_tokenizer_sweeps(cls, tokenizers: dict[str, Tokenizer]) -> dict[str, Tokenizer]:
        """Make the tokenizers of each sweep ordinary ones of the run."""
        all_tokenizers: dict[str, Tokenizer] = {}
        for name, section in tokenizers.items():
            try:
                expanded = section.expand_sweep(name)
            except ValidationError as error:
                raise ValueError(f"{name}.sweep: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
            for other in expanded.keys() & (all_tokenizers.keys() | tokenizers.keys() - {name}):
                raise ValueError(f"{name}.sweep: there is another tokenizer {other}: give one of them another name")
            all_tokenizers |= expanded
        return all_tokenizers

    @property
    def run_directory(self) -> Path:
        """Return the folder of this run's results."""
        return Path(self.run.results) / self.run.name

    @property
    def emission_settings(self) -> Energy:
        """Return PUE and carbon intensity: those of the section energy, else the platform's."""
        return self.platform.merge_emission_settings(self.energy)

    def source(self, name: str) -> Source:
        """Return the source of that name."""
        return next(source for source in self.sources if source.name == name)

    def job_options(self, kind: PartitionKind) -> JobOptions:
        """Return the options of the jobs of a partition: those of the section slurm, else of the platform's file."""
        return self.platform.job_options(kind, self.slurm.account, self.slurm.partitions)

    @property
    def launch(self) -> str | None:
        """Return how a model is launched unless a job sets it: where srun does it, on which processes."""
        launch, nodes, devices = self.platform.launch, self.slurm.nodes, self.platform.devices
        if launcher_name(launch) == "srun":
            return f"srun --nodes={nodes} --ntasks={nodes * devices} --ntasks-per-node={devices}"
        return launch

    def vocabulary_size(self, tokens: str) -> int:
        """Return the vocabulary size of a token set."""
        return self.tokenizer[self.tokens[tokens].tokenizer].vocabulary_size

    def model_seed(self, name: str) -> int:
        """Return what a model's first weights and the order of its sequences are drawn by."""
        own = self.models[name].seed
        return self.run.seed if own is None else own

    def personal_data_markers(self, tokenizer: str) -> list[str]:
        """Return what stands for personal data in the corpora that a tokenizer is of, sorted."""
        corpora = {t.corpus for t in self.tokens.values() if t.tokenizer == tokenizer}
        corpora.add(self.tokenizer[tokenizer].corpus)
        return sorted(
            {marker for name in corpora for marker in self.corpus[name].personal_data.list_replacement_markers()}
        )

    def corpus_sources(self, name: str) -> list[str]:
        """Return the names of the sources that a corpus is made from, sorted."""
        return sorted(source.name for source in self.sources if source.name not in self.corpus[name].exclude_sources)

    def interleaved_sources(self, name: str) -> list[str]:
        """Return the names of the sources of a set of interleaved documents, sorted."""
        return sorted(set(self.interleaved[name].sources))

    def corpora_with_score(self, score: Literal["quality", "classifiers", "perplexity"]) -> list[str]:
        """Return the corpora whose documents get this score."""
        return [name for name, section in self.corpus.items() if getattr(section, score)]

    def perplexity_settings(self, corpus: str) -> Perplexity:
        """Return by which model a corpus is read, of one that `scored` names."""
        section = self.corpus[corpus].perplexity
        if section is None:
            raise ValueError(f"no model reads corpus {corpus}")
        return section

    def sources_with_opt_out_list(self) -> list[str]:
        """Return the sources that have an opt-out list, sorted."""
        return sorted(source.name for source in self.sources if source.opt_out)

    def evaluated_milestones(self) -> list[tuple[str, int]]:
        """Return (model, step) of every milestone that is evaluated; none without suites or texts to evaluate on."""
        if not self.evaluation.suite_names:
            return []
        first = -1 if self.evaluation.checkpoints == "final" else 0
        return [
            (name, step) for name, model in self.models.items() for step in model.training.milestone_steps()[first:]
        ]

    def root_model(self, model: str) -> str:
        """Return the model that a branch goes on from, or that one does; any other model itself."""
        while start := self.models[model].training.start:
            model = start.model
        return model

    def baselines(self) -> dict[str, str | None]:
        """Return the models that evaluated ones are compared with: a model's name, or None where a folder holds it."""
        if not self.evaluated_milestones():
            return {}
        own = self.models if self.evaluation.untrained else {}
        named = {
            f"{ADOPTED if self.models[self.root_model(name)].pretrained else UNTRAINED}-{name}": name for name in own
        }
        return named | dict.fromkeys(self.evaluation.baselines)
