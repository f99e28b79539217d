"""What of a run's configuration each job receives: exactly the keys that its step reads.

They are parameters of the job's rule, so that a job runs again when one of them changed, and for no other key. Each
function is of the step of its name, for a job with these values of its wildcards (`pipeline.workflow.steps`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.pretrained import Pretrained
from pipeline.core.settings import Settings, leaves
from pipeline.evaluate.settings import (
    BaselineSettings,
    DifferencesSettings,
    MemorizationSettings,
    SamplesSettings,
    SuiteSettings,
    SuitesSettings,
)
from pipeline.forecast.calibration import forecast_plan
from pipeline.model.size import parameter_count
from pipeline.opt_out.others import others
from pipeline.opt_out.remains_settings import RemainsSettings
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.processes.launch import launcher
from pipeline.pretrain.settings import AdoptSettings, ExportSettings, SegmentSettings
from pipeline.provenance.settings import CrateSettings
from pipeline.report.settings import PageSettings
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings
from pipeline.tokens.settings import IndexSettings, ShardSettings, SuffixesSettings, Tokens, TokenUse
from pipeline.workflow.corpus_step_settings import harmful, shared, signatures


def _held_out(config: Config, tokenizer: str) -> float:
    """The held-out share is that of the token sets of its corpus, so that a tokenizer never trains on validation text.

    All tokenizers of a corpus have the same, so that they are compared on the same text. Another corpus has other
    clusters and holds out others: tokens by the tokenizer of another corpus may hold out what that one has read.
    """
    corpus = config.tokenizer[tokenizer].corpus
    users = [t.validation_fraction for t in config.tokens.values() if tokenizer == t.tokenizer or corpus == t.corpus]
    return max(users, default=Tokens().validation_fraction)


def tokenizer_train(config: Config, i: Mapping[str, str]) -> Settings:
    name = i["tokenizer"]
    return TrainSettings(
        validation_fraction=_held_out(config, name),
        markers=config.markers(name),
        **shared(TrainSettings, config.tokenizer[name]),
    )


def tokenizer_fertility(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.tokenizer[i["tokenizer"]]
    return FertilitySettings(
        validation_fraction=_held_out(config, i["tokenizer"]),
        parallel=sorted(section.parallel),
        **{key: value for key, value in shared(FertilitySettings, section).items() if key != "parallel"},
    )


def tokens_shard(config: Config, i: Mapping[str, str]) -> Settings:
    section = config.tokens[i["tokens"]]
    sources = [config.source(name) for name in config.corpus_sources(section.corpus)]
    genres = {source.name: source.genre for source in sources if section.strata.genre and source.genre is not None}
    licenses = {source.name: source.license for source in sources if section.strata.license and not source.license_key}
    return ShardSettings(shard=int(i["shard"]), genres=genres, licenses=licenses, **shared(ShardSettings, section))


def tokens_index(config: Config, i: Mapping[str, str]) -> Settings:
    uses: dict[str, TokenUse] = {}
    for name, model in config.models.items():
        if model.tokens == i["tokens"]:
            needed = shared(TokenUse, model.training) | {"validates": bool(model.training.validation_every)}
            use = TokenUse(model=name, **needed)
            uses.setdefault(use.model_dump_json(exclude={"model"}), use)  # cells of an experiment need the same
    return IndexSettings(shards=config.tokens[i["tokens"]].shards, uses=[*uses.values()])


def tokens_suffixes(config: Config, i: Mapping[str, str]) -> Settings:
    return SuffixesSettings()


def plan_estimate(config: Config, i: Mapping[str, str]) -> Settings:
    models = {
        name: {
            "architecture": model.architecture,
            "training": model.training,
            "vocabulary_size": config.vocabulary_size(model.tokens),
            "pretrained": config.models[config.root(name)].pretrained is not None,
        }
        for name, model in config.models.items()
    }
    # Without srun a training has the devices of one node, however many are asked for.
    nodes = config.slurm.nodes if launcher(config.platform.launch) == "srun" else 1
    return EstimateSettings.model_validate(
        {
            "models": models,
            "platform": config.platform.model_dump() | {"nodes": nodes},
            "energy": config.emissions.model_dump(),
            "forecast": forecast_plan(config),
            "not_run": config.not_run(),
        }
    )


def pretrain_segment(config: Config, i: Mapping[str, str]) -> SegmentSettings:
    model, last = config.models[i["model"]], int(i["step"])
    # Where it starts is told by the step and by the milestone that is read, whatever the other model is called.
    training = model.training.model_copy(update={"start": None})
    return SegmentSettings(
        first_step=model.training.segment_start(last),
        last_step=last,
        records_outcome=i["model"] in config.cells(),
        energy_options=config.platform.energy_policies.get(training.energy_policy or ""),
        **shared(SegmentSettings, model) | {"seed": config.model_seed(i["model"]), "training": training},
    )


def pretrain_adopt(config: Config, i: Mapping[str, str]) -> Settings:
    model = config.models[i["model"]]
    assert model.pretrained, "only such models have the job"
    return AdoptSettings(architecture=model.architecture, folder=model.pretrained.folder)


def pretrain_export(config: Config, i: Mapping[str, str]) -> Settings:
    model = config.models[i["model"]]
    trained = pretrain_segment(config, {**i, "step": str(model.training.steps)}).of_result()
    vocabulary_size = config.vocabulary_size(model.tokens)
    told = {
        name: value
        for name, value in leaves(trained)
        if isinstance(value, bool | int | float | str) and name not in ("first_step", "last_step")
    }
    return ExportSettings(
        hyperparameters={**told, "parameters": parameter_count(model.architecture, vocabulary_size)},
        first_step=model.training.first_step,
    )


def evaluate_suites(config: Config, i: Mapping[str, str]) -> Settings:
    return SuitesSettings(
        model=i["model"],
        step=int(i["step"]),
        **_asked(config),
    )


def _asked(config: Config) -> dict[str, Any]:
    """Return what every model is asked: the same, whatever it is."""
    return {
        "suites": [SuiteSettings.model_validate(suite.model_dump()) for suite in config.suites()],
        "seed": config.evaluation.seed,
        "batch_size": config.evaluation.batch_size,
        "deterministic": config.evaluation.deterministic,
    }


def evaluate_baselines(config: Config, i: Mapping[str, str]) -> Settings:
    model = config.baselines()[i["baseline"]]
    seed = None if model is None or config.models[config.root(model)].pretrained else config.model_seed(model)
    return BaselineSettings(name=i["baseline"], untrained_seed=seed, **_asked(config))


def evaluate_samples(config: Config, i: Mapping[str, str]) -> Settings:
    return SamplesSettings(
        model=i["model"], memorization=_memorization(config, i["model"]), **config.evaluation.samples.model_dump()
    )


def _memorization(config: Config, model: str) -> MemorizationSettings | None:
    """Return what is counted of a model's text, by the searches of its corpus but for the model of names."""
    section, name = config.evaluation.memorization, config.tokens[config.models[model].tokens].corpus
    if section is None:
        return None
    corpus = config.corpus[name]
    return MemorizationSettings(
        seed=config.evaluation.seed,
        batch_size=config.evaluation.batch_size,
        harmful=corpus.harmful.named(),
        harmful_sha256=harmful(config, name),
        personal_data=corpus.personal_data.model_copy(update={"names": None, "names_sha256": None}),
        **section.model_dump(),
    )


def evaluate_differences(config: Config, i: Mapping[str, str]) -> Settings:
    """Models that are trained alike on the same tokens are told from their seeds, if these are not the same."""
    groups: dict[str, dict[int, str]] = {}
    for name, model in sorted(config.compared_models().items()):
        trained = pretrain_segment(config, {"model": name, "step": str(model.training.steps)}).of_result()
        seed = trained.pop("seed")
        start, taken = model.training.start, config.models[config.root(name)].pretrained
        began = [start.step if start else None, taken.folder if taken else None]
        groups.setdefault(json.dumps([model.tokens, trained, began]), {}).setdefault(seed, name)
    return DifferencesSettings(seeds=[[*of_seed.values()] for of_seed in groups.values() if len(of_seed) > 1])


def opt_out_remains(config: Config, i: Mapping[str, str]) -> Settings:
    return RemainsSettings(
        run=config.run.name,
        corpora={name: signatures(config, name) for name in config.corpus},
        tokens={name: section.corpus for name, section in config.tokens.items()},
        others=others(Path(config.run.results), config.run.name),
    )


def report_page(config: Config, i: Mapping[str, str]) -> Settings:
    return PageSettings(
        run=config.run.name,
        seed=config.run.seed,
        configuration=json.dumps(config.written(), sort_keys=True, indent=1),
        platform=config.platform.name,
        language=config.report.language,
        provider=config.run.provider,
        contact=config.run.contact,
        disclosure=config.disclosure,
        corpora={name: config.tokens[model.tokens].corpus for name, model in config.models.items()},
        pretrained=_pretrained(config),
        experiments=config.experiment_pages(),
        license_evidence_sha256=config.license_evidence(),
        power={part.name: part.power for part in config.platform.partitions.values() if part.power},
        **{**shared(PageSettings, config.emissions, config.platform), **config.emissions.yearly},
    )


def provenance_crate(config: Config, i: Mapping[str, str]) -> Settings:
    return CrateSettings(
        run=config.run.name,
        provider=config.run.provider,
        provider_url=config.run.provider_url,
        contact=config.run.contact,
        pretrained=_pretrained(config),
    )


def _pretrained(config: Config) -> dict[str, Pretrained]:
    """Return what models of the run began with, by their names."""
    return {name: model.pretrained for name, model in config.models.items() if model.pretrained}
