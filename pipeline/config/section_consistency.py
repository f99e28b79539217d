"""Whether the sections of a configuration agree: what one of them names, another has.

Each check raises ValueError with a sentence that names the key.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from pipeline.config.sections import Sections
from pipeline.core.batch_schedule import StepRange
from pipeline.core.errors import suggest_name
from pipeline.corpus.documents import FINAL_SCHEMA
from pipeline.pretrain.settings import Training
from pipeline.sources.spdx_license_parser import canonicalize_spdx_expression, is_allowed
from pipeline.tokens.settings import UNKNOWN, bin_names


def _check_licenses(config: Sections) -> None:
    """Check that this run allows the license of every source, but for those whose documents have their own."""
    for source in (source for source in config.sources if source.license_key is None):
        if config.allowed_licenses is not None and not is_allowed(source.license, config.allowed_licenses):
            raise ValueError(
                f"source {source.name} has the license {source.license}, which allowed_licenses does not allow "
                f"({', '.join(config.allowed_licenses) or 'it is empty'}): leave the source out, or allow its license"
            )
    for name, corpus in config.corpus.items():
        for language, seeds in corpus.quality.items():
            for seed_set in [*seeds.good, *seeds.bad]:
                if config.allowed_licenses is not None and not is_allowed(seed_set.license, config.allowed_licenses):
                    raise ValueError(
                        f"corpus.{name}.quality.{language}: {seed_set.path} has the license {seed_set.license}, "
                        "which allowed_licenses does not allow: leave the file out, or allow its license"
                    )
        for column, classifier in corpus.classifiers.items():
            if config.allowed_licenses is not None and not is_allowed(classifier.license, config.allowed_licenses):
                raise ValueError(
                    f"corpus.{name}.classifiers.{column}: {classifier.path} has the license {classifier.license}, "
                    "which allowed_licenses does not allow: leave the classifier out, or allow its license"
                )
    for name, model in config.models.items():
        if (taken := model.pretrained) is None:
            continue
        try:
            license = canonicalize_spdx_expression(taken.license)
        except ValueError as error:
            raise ValueError(f"models.{name}.pretrained: {error}") from None
        if config.allowed_licenses is not None and not is_allowed(license, config.allowed_licenses):
            raise ValueError(
                f"models.{name}.pretrained: {taken.folder} has the license {license}, which allowed_licenses does not "
                "allow: begin with another model, or allow its license"
            )


def _check_references(config: Sections) -> None:
    names = [source.name for source in config.sources]
    if len(set(names)) < len(names):
        name = max(names, key=names.count)
        raise ValueError(f"sources.{name}.name: two sources have this name: give each source its own")
    references: list[tuple[str, str, Collection[str]]] = [
        *((f"tokenizer.{n}.corpus", t.corpus, config.corpus) for n, t in config.tokenizer.items()),
        *((f"tokens.{n}.corpus", t.corpus, config.corpus) for n, t in config.tokens.items()),
        *((f"tokens.{n}.tokenizer", t.tokenizer, config.tokenizer) for n, t in config.tokens.items()),
        *((f"models.{n}.tokens", m.tokens, config.tokens) for n, m in config.models.items()),
    ]
    for field, value, section in references:
        if value not in section:
            raise ValueError(f"{field}: there is no {value!r}: {suggest_name(value, section)}")
    for name, corpus in config.corpus.items():
        for key, named in (
            ("exclude_sources", corpus.exclude_sources),
            ("deduplication.prefer", corpus.deduplication.prefer),
            ("decontamination.cannot_hold_items", corpus.decontamination.cannot_hold_items),
        ):
            if unknown := [source for source in named if source not in names]:
                raise ValueError(
                    f"corpus.{name}.{key}: there is no source {unknown[0]!r}: {suggest_name(unknown[0], names)}"
                )
        if not config.corpus_sources(name):
            raise ValueError(f"corpus.{name}.exclude_sources: no source is left; leave one out of the list")
        for source_name in config.corpus_sources(name):
            try:
                corpus.rules_for(source := config.source(source_name), source.genre)
            except ValidationError as error:
                problem = error.errors()[0]
                key = ".".join(map(str, problem["loc"]))
                raise ValueError(f"sources.{source_name}.filters: {key}: {problem['msg']}") from None
            except ValueError as error:
                raise ValueError(f"sources.{source_name}, corpus {name}: {error}") from None


def _check_interleaved(config: Sections) -> None:
    names = [source.name for source in config.sources]
    for name, section in config.interleaved.items():
        for key, values, known in (
            ("sources", section.sources, names),
            ("word_lists", section.word_lists, section.languages),
        ):
            if unknown := [value for value in values if value not in known]:
                raise ValueError(
                    f"interleaved.{name}.{key}: there is no {key.removesuffix('s')} {unknown[0]!r}: "
                    f"{suggest_name(unknown[0], known)}"
                )


def _check_vocabularies(config: Sections) -> None:
    """Check that a tokenizer has room for its markers, and that what its sample weighs is in its corpus."""
    for name, section in config.tokenizer.items():
        try:
            section.check_size(config.personal_data_markers(name))
        except ValueError as error:
            raise ValueError(f"tokenizer.{name}: {error}") from None
        languages = config.corpus[section.corpus].languages
        for language in section.sample_weights:
            if language not in languages:
                raise ValueError(
                    f"tokenizer.{name}.sample_weights: corpus {section.corpus} has no language {language!r}: "
                    f"{suggest_name(language, languages)}"
                )


def _check_perplexity(config: Sections) -> None:
    """Check that a corpus is read by a model that exists, whose training does not wait for this corpus."""
    for name in config.corpora_with_score("perplexity"):
        key, wanted = f"corpus.{name}.perplexity", config.perplexity_settings(name)
        if wanted.model not in config.models:
            near = suggest_name(wanted.model, config.models)
            raise ValueError(f"{key}.model: there is no model {wanted.model!r}: {near}")
        if wanted.tokens > (length := config.models[wanted.model].training.sequence_length):
            raise ValueError(f"{key}.tokens: the sequence_length of models.{wanted.model} is {length}: write less")
        behind, next_ones = set[str](), {name}
        while next_ones:
            corpus = next_ones.pop()
            section = config.corpus[corpus].perplexity
            if section is not None and section.model in config.models:
                tokens = config.tokens[config.models[section.model].tokens]
                corpora = {tokens.corpus, config.tokenizer[tokens.tokenizer].corpus}
                next_ones |= corpora - behind
                behind |= corpora
        if name in behind:
            raise ValueError(
                f"{key}.model: {wanted.model} is trained on what corpus {name} is made for: name a model whose "
                "tokens and tokenizer are of another corpus"
            )


def _check_classifier_names(config: Sections) -> None:
    for name, corpus in config.corpus.items():
        if taken := sorted({*corpus.classifiers} & {*FINAL_SCHEMA.names}):
            raise ValueError(
                f"corpus.{name}.classifiers.{taken[0]}: documents have a column of this name: choose another name"
            )


def _check_strata(config: Sections) -> None:
    for name, section in config.tokens.items():
        strata, classifiers = section.strata, config.corpus[section.corpus].classifiers
        if strata.quality_from is not None and strata.quality_from not in classifiers:
            raise ValueError(
                f"tokens.{name}.strata.quality_from: corpus {section.corpus} has no classifier "
                f"{strata.quality_from!r}: {suggest_name(strata.quality_from, classifiers)}"
            )
        if strata.quality_from is None and any(not 0 < bound < 1 for bound in strata.quality):
            raise ValueError(f"tokens.{name}.strata.quality: bounds of the quality must be between 0 and 1")
        for score in ("quality", "perplexity"):
            has_score = strata.column(score) != score or getattr(config.corpus[section.corpus], score)
            if strata.bin_bounds(score) and not has_score:
                raise ValueError(
                    f"tokens.{name}.strata.{score}: documents of corpus {section.corpus} have none: write "
                    f"corpus.{section.corpus}.{score}, or leave it out here"
                )


def _list_mixture_names(config: Sections, tokens: str) -> dict[str, list[str]]:
    """Return what a mixture of a token set may name, by the key that it goes by; of licenses nothing is known."""
    section = config.tokens[tokens]
    sources = config.corpus_sources(section.corpus)
    known = {"source": sources, "language": sorted(config.corpus[section.corpus].languages)}
    for name in section.strata.list_stratification_keys():
        if name == "genre":
            known[name] = sorted({config.source(source).genre or UNKNOWN for source in sources})
        elif name == "license":
            known[name] = []
        else:
            known[name] = [*bin_names(section.strata.bin_bounds(name)), UNKNOWN]
    return known


def _check_sampling(config: Sections) -> None:
    """Check that what a training mixes is in its corpus; the job itself would say so only when its GPUs wait."""
    for name, model in config.models.items():
        corpus = config.tokens[model.tokens].corpus
        known = _list_mixture_names(config, model.tokens)
        for mixture in (model.training.sampling, *model.training.sampling.phases):
            named = mixture.weights or mixture.epochs
            if named and mixture.by not in known:
                raise ValueError(
                    f"models.{name}.training.sampling: by {mixture.by} needs tokens.{model.tokens}.strata with "
                    f"{mixture.by}: write it there"
                )
            for wanted, amount in named.items():
                if mixture.by == "license":  # documents may have their own, which the job finds
                    continue
                if amount and wanted not in known[mixture.by]:
                    raise ValueError(
                        f"models.{name}.training.sampling: corpus {corpus} has no {mixture.by} {wanted!r}: "
                        f"{suggest_name(wanted, known[mixture.by])}"
                    )


def _check_training_starts(config: Sections) -> None:
    """Check that a branch goes on from a milestone that is made, of a model of its shape, with batches in its order."""
    for name, model in config.models.items():
        if (start := model.training.start) is None:
            continue
        if model.pretrained:
            raise ValueError(
                f"models.{name} has training.start and pretrained, and can begin with one: remove the other"
            )
        key, other = f"models.{name}.training.start", config.models.get(start.model)
        if other is None or start.model == name:
            near = suggest_name(start.model, config.models.keys() - {name})
            raise ValueError(f"{key}.model: there is no other model {start.model!r}: {near}")
        if start.step not in (kept := other.training.milestone_steps()):
            steps = ", ".join(map(str, kept[:5])) + ", …" * (len(kept) > 5)
            raise ValueError(
                f"{key}.step: models.{start.model} keeps no milestone of step {start.step}: choose one of {steps}, or "
                "another milestone_every there"
            )

        def step_ranges_until(training: Training, step: int = start.step) -> list[StepRange]:
            return training.batch_schedule.step_ranges(0, step)

        alike = {
            "architecture": (model.architecture, other.architecture),
            "the tokenizer of its tokens": tuple(config.tokens[one.tokens].tokenizer for one in (model, other)),
            "seed": (config.model_seed(name), config.model_seed(start.model)),
            "training.sequence_length": (model.training.sequence_length, other.training.sequence_length),
            "training.batch_size and ramp up to there": (
                step_ranges_until(model.training),
                step_ranges_until(other.training),
            ),
            "training.optimizer": (model.training.optimizer, other.training.optimizer),
        }
        for what, (own, wanted) in alike.items():
            if own != wanted:
                raise ValueError(f"{key}: models.{name} needs {what} of models.{start.model}, and has another")


def _check_memorization(config: Sections) -> None:
    wanted = config.evaluation.memorization
    for name, model in config.models.items():
        if wanted is not None and wanted.minimum_tokens > (length := model.training.sequence_length):
            raise ValueError(
                f"evaluation.memorization: begin-of-text, {wanted.prompt_tokens} tokens of a prompt and "
                f"{wanted.continuation_tokens} behind it are more than the {length} of models.{name}'s "
                "sequence_length: make prompt_tokens or continuation_tokens smaller"
            )


def _check_described_sources(config: Sections) -> None:
    sources = {source.name for source in config.sources}
    for key in ("data_categories", "source_descriptions"):
        if unknown := sorted(getattr(config.disclosure, key).keys() - sources):
            raise ValueError(
                f"disclosure.{key}: there is no source {unknown[0]!r}: {suggest_name(unknown[0], sources)}"
            )


def _check_energy_policies(config: Sections) -> None:
    known = config.platform.energy_policies
    for name, model in config.models.items():
        if (policy := model.training.energy_policy) is not None and policy not in known:
            has = f"has {', '.join(sorted(known))}" if known else "has none (energy_policies in its file)"
            raise ValueError(
                f"models.{name}.training.energy_policy {policy!r}: the platform {config.platform.name} {has}: choose "
                "one that it has, or none"
            )


def _check_partition_options(config: Sections) -> None:
    platform = config.platform
    for kind in config.slurm.partitions:
        if (used := platform.partition_for_work(kind)) != kind:
            raise ValueError(
                f"slurm.partitions.{kind}: platform {platform.name} has no partition {kind}, its jobs go to {used}: "
                f"write slurm.partitions.{used}"
            )


def check_retrain_models(config: Sections) -> None:
    """Check that what may be trained again is a model of this run, or an experiment, whose cells it stands for.

    Raises:
        ValueError: it is not.
    """
    known = {*config.models, *config.experiments}
    if unknown := sorted({*config.run.retrain} - known):
        raise ValueError(f"run.retrain: there is no model {unknown[0]!r}: {suggest_name(unknown[0], known)}")


def check_sections(config: Sections) -> None:
    """Check that the sections of a run agree.

    Raises:
        ValueError: they do not.
    """
    named = (_check_licenses, _check_references, _check_interleaved, _check_vocabularies, _check_perplexity)
    for agrees in (
        *named,
        _check_classifier_names,
        _check_strata,
        _check_sampling,
        _check_training_starts,
        _check_memorization,
        _check_described_sources,
        _check_energy_policies,
        _check_partition_options,
    ):
        agrees(config)
