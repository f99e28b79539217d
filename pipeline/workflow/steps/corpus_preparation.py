"""The steps of the stage corpus up to deduplication, and the order of all of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.config.referenced_files import URL_LIST_NAMES
from pipeline.core.settings import Settings
from pipeline.corpus.classifier.settings import ClassifySettings, ModelFile, SeedFile
from pipeline.corpus.settings import (
    Corpus,
    DeduplicateSettings,
    DuplicateSelection,
    EqualKeysSettings,
    FilterSettings,
    FindDuplicatesSettings,
    PerplexitySettings,
    QualitySettings,
    UrlListFile,
)
from pipeline.sources.settings import Source
from pipeline.sources.spdx_license_parser import is_allowed, licenses_in
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import (
    add_names_model_hash,
    file_sha256,
    hash_harmful_files,
    minhash_signature_settings,
    select_matching_fields,
)
from pipeline.workflow.steps.declaration import (
    SOURCES_READ,
    UNIT_NEEDS,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    batch_instances,
    untracked_corpus_input,
    untracked_input,
    wait_for_all_batches,
    wait_for_input,
)
from pipeline.workflow.steps.opt_out import READS_UNITS, RESERVED_BATCHES, RESERVED_UNITS

CORPUS = JobInstances(("corpus",), lambda c: [(corpus,) for corpus in c.corpus])
CORPUS_BATCH = batch_instances(
    ("corpus", "source"), lambda c: [(corpus, source) for corpus in c.corpus for source in c.corpus_sources(corpus)]
)
# Where documents get a score.
SCORED_CORPUS = JobInstances(("corpus",), lambda c: [(corpus,) for corpus in c.corpora_with_score("quality")])
SCORED_CORPUS_BATCH = batch_instances(
    ("corpus", "source"),
    lambda c: [(name, source) for name in c.corpora_with_score("quality") for source in c.corpus_sources(name)],
)
CLASSIFIED_CORPUS_BATCH = batch_instances(
    ("corpus", "classifier", "source"),
    lambda c: [
        (name, classifier, source)
        for name in c.corpora_with_score("classifiers")
        for classifier in c.corpus[name].classifiers
        for source in c.corpus_sources(name)
    ],
)
READ_CORPUS_BATCH = batch_instances(
    ("corpus", "source"),
    lambda c: [(name, source) for name in c.corpora_with_score("perplexity") for source in c.corpus_sources(name)],
)
# Where several jobs share the keys that are compared.
CORPUS_SHARE = JobInstances(
    ("corpus", "share"),
    lambda c: [
        (corpus, str(share))
        for corpus, section in c.corpus.items()
        if section.deduplication.jobs > 1
        for share in range(section.deduplication.jobs)
    ],
)


def filter_settings(config: Config, i: Wildcards) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    keys = select_matching_fields(FilterSettings, source, section)
    blocked, allowed = (
        [UrlListFile(name=_url_list_name(file), sha256=file_sha256(file)) for file in files]
        for files in config.block_and_allow_list_files(i["corpus"], source.name)
    )
    keys |= {
        "languages": config.rules_for(i["corpus"], source.name),
        "personal_data": add_names_model_hash(section.personal_data),
    }
    return FilterSettings(
        source=source.name,
        language_model_sha256=section.language_model and section.language_model.sha256,
        harmful_sha256=hash_harmful_files(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        allowed_licenses=_allowed_licenses(config, source),
        stated_language=source.language if source.language_key else None,
        blocked_urls=blocked,
        allowed_urls=allowed,
        **_sample_settings(source, section),
        **keys | {"harmful": section.harmful.without_folders()},
    )


def _url_list_name(file: Path) -> str:
    """Return the name of a file without its folder, which may be that of a person; with it for those of UT1."""
    return f"{file.parent.name}/{file.name}" if file.name in URL_LIST_NAMES else file.name


def _allowed_licenses(config: Config, source: Source) -> list[str]:
    """Return the licenses that documents of a source may have of their own: those of the run, or what it declares."""
    if source.license_key is None:
        return []
    declared = {*licenses_in(source.license), *source.license_names.values()}
    return sorted(declared) if config.allowed_licenses is None else config.allowed_licenses


def _sample_settings(source: Source, section: Corpus) -> dict[str, Any]:
    """Return whether samples of the removed documents of a source are kept and shown, and of which licenses."""
    if source.license_key is not None:
        return {"samples": True, "own_sample_licenses": section.sample_licenses} if section.keep_removed else {}
    free = source.rights.basis == "public-domain" or is_allowed(source.license, section.sample_licenses)
    return {"samples": section.keep_removed and free}


def quality_training_settings(config: Config, i: Wildcards) -> Settings:
    """The files are named in the order of `Config.quality_training_files`."""
    section, files = config.corpus[i["corpus"]], iter(config.quality_training_files(i["corpus"]))
    languages = {
        language: [
            SeedFile(
                sha256=file_sha256(file := next(files)),
                name=file.name,
                label=label,
                **select_matching_fields(SeedFile, seed_set),
            )
            for label, sets in (("good", seeds.good), ("bad", seeds.bad))
            for seed_set in sets
        ]
        for language, seeds in sorted(section.quality.items())
    }
    return QualitySettings(normalization=section.normalization, languages=languages)


def classify_settings(config: Config, i: Wildcards) -> ClassifySettings:
    section = config.corpus[i["corpus"]].classifiers[i["classifier"]]
    model, *others = config.classifier_files(i["corpus"], i["classifier"])
    windows = {"window_tokens": None, "long_texts": None} if section.is_fasttext else {}
    return ClassifySettings(
        files=[
            ModelFile(name=model.name, sha256=section.sha256),
            *(ModelFile(name=file.name, sha256=file_sha256(file)) for file in others),
        ],
        **select_matching_fields(ClassifySettings, section) | windows,
    )


def classifiers_of(config: Config, corpus: str) -> dict[str, ClassifySettings]:
    """Return the pretrained classifiers of a corpus, by the name of their column."""
    return {
        name: classify_settings(config, {"corpus": corpus, "classifier": name})
        for name in sorted(config.corpus[corpus].classifiers)
    }


def equal_keys_settings(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]].deduplication
    return EqualKeysSettings(
        share=int(i["share"]), shares=section.jobs, **select_matching_fields(EqualKeysSettings, section)
    )


def find_duplicates_settings(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]].deduplication
    return FindDuplicatesSettings(
        deduplication=DuplicateSelection(**select_matching_fields(DuplicateSelection, section))
    )


def deduplicate_settings(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]]
    samples = _sample_settings(config.source(i["source"]), section)
    return DeduplicateSettings(keep_removed=section.keep_removed, **samples)


def language_id_model_file(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the file of the corpus's language model; none where it is the one of py3langid."""
    model = run.config.corpus[w["corpus"]].language_model
    return [run.config.resolve_data_path("the language model", model.path)] if model is not None else []


def block_and_allow_list_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the files of the block lists, then of the allow lists, each once."""
    return [str(file) for files in run.config.block_and_allow_list_files(w["corpus"], w["source"]) for file in files]


def equal_keys_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the files of the jobs that share the keys of a corpus; none where finding the copies compares them."""
    jobs = run.config.corpus[w["corpus"]].deduplication.jobs
    return [run.file(layout.EQUAL_KEYS, corpus=w["corpus"], share=share) for share in range(jobs) if jobs > 1]


def perplexity_model_folder(run: RunFiles, w: Wildcards) -> str:
    """Return the model by which a corpus is read, as it was exported."""
    return run.file(layout.FINAL_MODEL, model=run.config.perplexity_settings(w["corpus"]).model)


def perplexity_model_token_index(run: RunFiles, w: Wildcards) -> str:
    """Return the index of the tokens that this model is trained on: what is behind a training waits for it too."""
    return run.token_index(run.config.perplexity_settings(w["corpus"]).model)


def wait_for_matching_batch(step: str) -> Input:
    """Return that the same batch of another step is done."""
    return wait_for_input("batch", lambda run, w: run.batch_record_path(step, w["corpus"], w["source"], w["batch"]))


FILTERED_BATCH = (SOURCES_READ, wait_for_matching_batch("corpus.filter"), untracked_input("documents", layout.FILTERED))
SIGNED_CORPUS = (
    SOURCES_READ,
    wait_for_all_batches("batches", "corpus.signatures"),
    RESERVED_BATCHES,
    untracked_corpus_input("signatures", layout.SIGNATURES),
)

STEPS = (
    Step(
        "corpus.filter",
        CORPUS_BATCH,
        "Filter {wildcards.source}, batch {wildcards.batch}, for the corpus {wildcards.corpus}",
        filter_settings,
        inputs=(
            *READS_UNITS,
            Input("model", language_id_model_file, is_ancient=True),
            Input(
                "harmful", lambda run, w: [*map(str, run.config.harmful_content_files(w["corpus"]))], is_ancient=True
            ),
            Input("url_lists", block_and_allow_list_files, is_ancient=True),
        ),
        outputs=(Output("documents", layout.FILTERED), Output("removed", layout.REMOVED.fill(step="filter"))),
        need=UNIT_NEEDS,
        content_hash=RunFiles.batch_hash,
        reads_raw=True,
        reuses=True,
        private="filter",
    ),
    Step(
        "corpus.quality",
        SCORED_CORPUS,
        "Train the classifiers of quality of the corpus {wildcards.corpus}",
        quality_training_settings,
        inputs=(
            Input("files", lambda run, w: [*map(str, run.config.quality_training_files(w["corpus"]))], is_ancient=True),
        ),
        outputs=(Output("model", layout.QUALITY_MODEL), Output("evaluation", layout.QUALITY_EVALUATION)),
        need=ResourceNeeds(minutes=60, memory_megabytes=4000),
    ),
    Step(
        "corpus.scores",
        SCORED_CORPUS_BATCH,
        "Score {wildcards.source}, batch {wildcards.batch}, of the corpus {wildcards.corpus}",
        inputs=(*FILTERED_BATCH, Input("model", layout.QUALITY_MODEL)),
        outputs=(Output("scores", layout.SCORES),),
        need=UNIT_NEEDS,
    ),
    Step(
        "corpus.classify",
        CLASSIFIED_CORPUS_BATCH,
        "Score {wildcards.source}, batch {wildcards.batch}, of the corpus {wildcards.corpus} by {wildcards.classifier}",
        classify_settings,
        inputs=(
            *FILTERED_BATCH,
            Input(
                "classifier",
                lambda run, w: [*map(str, run.config.classifier_files(w["corpus"], w["classifier"]))],
                is_ancient=True,
            ),
        ),
        outputs=(Output("scores", layout.CLASSIFIER_SCORES),),
        options=("operation",),
        need=ResourceNeeds("batch", 240, 1_000_000, 4000, 4.0),
    ),
    Step(
        "corpus.perplexity",
        READ_CORPUS_BATCH,
        "Read {wildcards.source}, batch {wildcards.batch}, of the corpus {wildcards.corpus} with a model",
        lambda config, i: PerplexitySettings(tokens=config.perplexity_settings(i["corpus"]).tokens),
        inputs=(
            *FILTERED_BATCH,
            wait_for_input("index", perplexity_model_token_index, is_ancient=True),
            Input("final", perplexity_model_folder),
        ),
        outputs=(Output("perplexity", layout.PERPLEXITY),),
        need=ResourceNeeds("batch", 240, 1_000_000, 3000, 4.0),
    ),
    Step(
        "corpus.signatures",
        CORPUS_BATCH,
        "Compute MinHash signatures of {wildcards.source}, batch {wildcards.batch}",
        lambda config, i: minhash_signature_settings(config, i["corpus"]),
        inputs=FILTERED_BATCH,
        outputs=(Output("signatures", layout.SIGNATURES),),
        need=UNIT_NEEDS,
        reuses=True,
    ),
    Step(
        "corpus.equal_keys",
        CORPUS_SHARE,
        "Find equal keys in the corpus {wildcards.corpus}, share {wildcards.share}",
        equal_keys_settings,
        inputs=(*SIGNED_CORPUS, RESERVED_UNITS),
        outputs=(Output("pairs", layout.EQUAL_KEYS),),
        need=ResourceNeeds("corpus", 60, memory_megabytes=1500),
    ),
    Step(
        "corpus.find_duplicates",
        CORPUS,
        "Find duplicates in the corpus {wildcards.corpus}",
        find_duplicates_settings,
        inputs=(
            *SIGNED_CORPUS,
            untracked_corpus_input("documents", layout.FILTERED),
            RESERVED_UNITS,
            Input("pairs", equal_keys_files, is_short=True),
        ),
        outputs=(Output("duplicates", layout.DUPLICATES_FOLDER, is_folder=True),),
        need=ResourceNeeds("corpus", 60, memory_megabytes=1500),
    ),
    Step(
        "corpus.deduplicate",
        CORPUS_BATCH,
        "Decide which documents stay of {wildcards.source}, batch {wildcards.batch}",
        deduplicate_settings,
        inputs=(
            *FILTERED_BATCH,
            wait_for_input("found", layout.DUPLICATES_FOLDER),
            untracked_input("duplicates", layout.DUPLICATES),
        ),
        outputs=(
            Output("deduplicated", layout.DEDUPLICATED),
            Output("removed", layout.REMOVED.fill(step="deduplicate")),
        ),
        need=UNIT_NEEDS,
        private="deduplicate",
    ),
)
