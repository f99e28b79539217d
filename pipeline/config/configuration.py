"""The one typed description of a run; every step receives a part of it.

`load` turns the YAML of a run into a `Config`; what of it a job receives is declared in `pipeline.workflow.steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError, model_validator

from pipeline import layout
from pipeline.config.configuration_errors import (
    Origin,
    format_validation_error,
    format_validation_errors,
)
from pipeline.config.deprecated_names import replace_deprecated_names
from pipeline.config.genre_estimation_from_samples import estimate_source_genre, find_corpora_without_preset
from pipeline.config.platforms import load_platform_settings
from pipeline.config.referenced_files import NamedFiles
from pipeline.config.section_consistency import check_retrain_models, check_sections
from pipeline.core.errors import InputError, InputErrors, suggest_name
from pipeline.corpus.rules.settings import LanguageRules
from pipeline.corpus.settings import Corpus
from pipeline.corpus.text.source_genre_estimate import GenreEstimate
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.task_file_reader import ItemFile, list_item_files
from pipeline.experiment.cells import (
    CellContext,
    expand_experiment,
    make_experiment_page_settings,
    replace_values,
    variant_name,
)
from pipeline.experiment.settings import Cell, ExperimentPage, Values
from pipeline.plan.settings import PlatformPlan
from pipeline.pretrain.processes.launch_command import count_processes, count_processes_per_node
from pipeline.pretrain.settings import Model, SegmentSettings
from pipeline.sources.settings import Genre
from pipeline.sources.source_units import SourceUnits


class Config(NamedFiles):
    """One run: its sections and the files they name, sources, batches and experiments."""

    _units: dict[str, SourceUnits] = PrivateAttr(default_factory=dict)
    _experiments: dict[str, ExperimentPage] = PrivateAttr(default_factory=dict)
    _variants: dict[str, str] = PrivateAttr(default_factory=dict)
    """Corpora that experiments make, by the token set that each is of."""
    _genres: dict[str, GenreEstimate] = PrivateAttr(default_factory=dict)
    _older_defaults: dict[str, frozenset[str] | None] = PrivateAttr(default_factory=dict)
    """Corpora without a preset in a run that began when the default was `standard`, with their keys if written."""
    _origin: Origin = PrivateAttr(default_factory=Origin)
    _item_files: dict[str, list[ItemFile]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _validate_and_add_cells(self) -> Config:
        check_sections(self)
        if self.experiments:
            self._add_experiment_cells()
            check_sections(self)
        check_retrain_models(self)
        return self

    def _add_experiment_cells(self) -> None:
        """Make the cells of each experiment ordinary models of the run, but for those that fit nowhere."""
        platform = PlatformPlan.model_validate(self.platform.model_dump())
        processes = count_processes(self.launch), count_processes_per_node(self.launch)
        place = CellContext(*processes, platform, self._checked_vocabulary_size, self._add_token_set_variant)
        written = dict(self.models)
        for name, experiment in self.experiments.items():
            if experiment.base not in written:
                near = suggest_name(experiment.base, written)
                raise ValueError(f"experiments.{name}.base: there is no model {experiment.base!r}: {near}")
            base = written[experiment.base]
            try:
                cells = [*expand_experiment(name, experiment, base, self.model_seed(experiment.base), place)]
                corpus = self.corpus[self.tokens[base.tokens].corpus]
                self._experiments[name] = make_experiment_page_settings(
                    experiment, base, corpus, [cell for cell, _ in cells]
                )
            except ValidationError as error:
                raise ValueError(format_validation_error(error, Model, f"experiments.{name}.vary")) from None
            except ValueError as error:
                raise ValueError(f"experiments.{name}: {error}") from None
            if both := [cell.name for cell, _ in cells if cell.name in self.models]:
                raise ValueError(f"experiments.{name}: there is another model {both[0]}: give one of them another name")
            self.models.update({cell.name: model for cell, model in cells if cell.refused is None})

    def _add_token_set_variant(self, tokens: str, values: Values) -> str:
        """Return the name of a token set that is like another one but for these keys of its corpus: both are added.

        The tokenizer stays the same, so that models on both are measured in the same tokens.
        """
        self._checked_vocabulary_size(tokens)
        section = self.tokens[tokens]
        corpus = self.corpus[section.corpus]
        try:
            varied = Corpus.model_validate(replace_values(corpus.model_dump(exclude_unset=True), values))
        except ValidationError as error:
            raise ValueError(format_validation_error(error, Corpus, "vary: corpus")) from None
        if varied == corpus:
            return tokens
        name, own = variant_name(section.corpus, values), variant_name(tokens, values)
        made = section.model_copy(update={"corpus": name})
        if self.corpus.setdefault(name, varied) != varied or self.tokens.setdefault(own, made) != made:
            raise ValueError(f"there is another corpus {name}, or another token set {own}: give that another name")
        self._variants[own] = name
        return own

    def _checked_vocabulary_size(self, tokens: str) -> int:
        if tokens not in self.tokens:
            raise ValueError(f"there is no token set {tokens!r}: {suggest_name(tokens, self.tokens)}")
        return self.vocabulary_size(tokens)

    @property
    def origin(self) -> Origin:
        """Where the configuration was written."""
        return self._origin

    def item_files(self, suite: Suite) -> list[ItemFile]:
        """Return the files of a suite's items; read once, because an invocation asks dozens of times.

        Raises:
            InputError: a folder, a task or a data file is missing or wrong.
        """
        key = suite.model_dump_json()
        if key not in self._item_files:
            self._item_files[key] = list_item_files(suite)
        return self._item_files[key]

    def experiment_page_settings(self) -> dict[str, ExperimentPage]:
        """Return the settings of the page of each experiment, with its cells."""
        return self._experiments

    def cell_model_names(self) -> list[str]:
        return [cell.name for cell in self._cells() if cell.refused is None]

    def sampled_models(self) -> list[str]:
        """Return the models with searchable tokens that write samples: cells only where their experiment says so."""
        silent = {
            cell.name
            for name, experiment in self.experiments.items()
            if not experiment.samples
            for cell in self._experiments[name].cells
        }
        return [
            name for name, model in self.models.items() if self.tokens[model.tokens].suffixes and name not in silent
        ]

    def infeasible_cells(self) -> dict[str, str]:
        """Return the cells that fit nowhere, each with why."""
        return {cell.name: cell.refused for cell in self._cells() if cell.refused is not None}

    def compared_models(self) -> dict[str, Model]:
        """Return the models that the run compares with each other: cells are compared by their experiment."""
        cells = {*self.cell_model_names()}
        return {name: model for name, model in self.models.items() if name not in cells}

    def _cells(self) -> Iterator[Cell]:
        return (cell for page in self._experiments.values() for cell in page.cells)

    def segment_settings(self, model: str, last_step: int) -> SegmentSettings:
        """Return the settings of the segment of a training that ends with a step.

        Its start is known by the first step and by the milestone that is read, whatever the other model is called.
        """
        section = self.models[model]
        return SegmentSettings(
            architecture=section.architecture,
            training=section.training.model_copy(update={"start": None}),
            seed=self.model_seed(model),
            first_step=section.training.segment_start(last_step),
            last_step=last_step,
            records_outcome=model in self.cell_model_names(),
            energy_options=self.platform.energy_policies.get(section.training.energy_policy or ""),
        )

    def source_units(self, source: str) -> SourceUnits:
        """Return the files and units of a source, listed once."""
        if source not in self._units:
            parts = layout.PARTS.path(self.run_directory, source=source)
            self._units[source] = SourceUnits(self.source(source), self.data, parts)
        return self._units[source]

    def estimated_genres(self) -> dict[str, GenreEstimate]:
        """Return the genre by a sample of each source that states none and is in a corpus with the preset `genre`."""
        corpora = [name for name, section in self.corpus.items() if section.preset == "genre"]
        sources = {source for name in corpora for source in self.corpus_sources(name)}
        for source in self.sources:
            if source.genre is None and source.name in sources and source.name not in self._genres:
                self._genres[source.name] = estimate_source_genre(self.source_units(source.name), self.run_directory)
        return self._genres

    def genre(self, source: str) -> Genre | None:
        """Return the genre that a source states, or that a sample gives it; None if it needs none."""
        estimated = self.estimated_genres().get(source)
        return self.source(source).genre or (estimated.genre if estimated else None)

    def rules_for(self, corpus: str, source: str) -> dict[str, LanguageRules]:
        """Return the filter rules for the documents of a source in a corpus, by language."""
        return self.corpus[corpus].rules_for(self.source(source), self.genre(source))

    def corpora_with_older_default(self) -> list[str]:
        """Return the corpora without a preset that keep `standard`, the default when the run began."""
        return sorted(self._older_defaults)

    def raw_files(self, source: str) -> dict[str, Path]:
        """Return the raw files of a source, name to path."""
        return self.source_units(source).files

    def unit_files(self, source: str) -> dict[str, dict[str, Path]]:
        """Return the units of a source that have files, each with its files, name to path."""
        return self.source_units(source).units

    def job_batches(self, source: str) -> dict[str, list[str]]:
        """Return the units of a source that one job works on, by the number of the batch."""
        return self.source_units(source).batches

    def suites(self) -> list[Suite]:
        """Return the evaluation's suites with their folders resolved."""
        return self.evaluation.resolve_suites(self.data)

    def dump_explicit_settings(self) -> dict[str, Any]:
        """Return what was written to describe this run: `load` makes the same run of it, defaults included.

        What is Slurm's alone changes no result and is left out, and where this machine keeps its key; so are the cells
        and their corpora, which the experiments describe.
        """
        made = {"models": self.cell_model_names(), "tokens": self._variants, "corpus": self._variants.values()}
        keys = self.model_dump(
            mode="json",
            exclude_unset=True,
            exclude={
                **dict.fromkeys(("data", "platform", "slurm", "provenance"), True),
                **{section: dict.fromkeys(names, True) for section, names in made.items()},
            },
        )
        corpora = self._dump_corpora(keys.pop("corpus", {}))
        return {**keys, **corpora, "platform": self.platform.name}

    def _dump_corpora(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the corpora with the preset of each, but for those that began with the older default."""
        corpora = {}
        for name in self.corpus.keys() - self._variants.values():
            section = written.get(name, {})
            if name not in self._older_defaults:
                corpora[name] = {**section, "preset": self.corpus[name].preset}
            elif (keys := self._older_defaults[name]) is not None:
                corpora[name] = {key: value for key, value in section.items() if key in keys}
        return {"corpus": corpora} if corpora else {}


def parse_configuration(raw: Mapping[str, Any], files: Sequence[Path] = ()) -> Config:
    """Return the validated configuration; `platform` is the name of a file in workflow/platforms.

    Args:
        raw: the configuration as it was written.
        files: where it was written, for messages; a later file replaces keys of an earlier one.

    Raises:
        InputErrors: a sentence for each mistake, with its key and the way out.
    """
    content, deprecations = replace_deprecated_names(raw)
    origin = Origin(content, files[::-1], deprecations)
    older = find_corpora_without_preset(content)
    corpora = {"corpus": {**content.get("corpus", {}), **older}} if older else {}
    try:
        platform = load_platform_settings(str(raw.get("platform", "local")))
    except InputError as error:
        raise InputError(origin.prefix_source_location(str(error))) from None
    try:
        config = Config.model_validate({**content, **corpora, "platform": platform})
    except ValidationError as error:
        raise InputErrors(format_validation_errors(error, Config, "configuration", content, origin.files)) from None
    config._origin = origin
    written = content.get("corpus", {})
    config._older_defaults.update({name: frozenset(written[name] or {}) if name in written else None for name in older})
    return config
