"""Every path of a results folder, spelled once.

A `Place` is a template relative to the folder of a run. Its wildcards have the names of the rules' wildcards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile(
        "".join(f"(?P<{part}>[^/]+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    )


@cache
def _kept(template: str) -> dict[str, str]:
    """Return for each wildcard of a template what stands for it in the template."""
    return {name: f"{{{name}}}" for name in re.findall(r"\{(\w+)\}", template)}


@dataclass(frozen=True)
class Place:
    """One kind of file or folder below the folder of a run."""

    template: str

    def name(self, **values: object) -> str:
        """Return the path relative to the run, as records name it."""
        return self.template.format(**values)

    def path(self, run: Path, **values: object) -> Path:
        """Return the path in the folder of a run."""
        return run / self.template.format(**values)

    def in_run(self, run: str, **values: object) -> str:
        """Return the path in the folder of a run; wildcards without a value stay, as rules have them."""
        return f"{run}/{self.template.format(**{**_kept(self.template), **values})}"

    def fill(self, **values: object) -> Place:
        """Return the place with some wildcards filled in."""
        return Place(self.template.format(**{**_kept(self.template), **values}))

    def parse(self, name: str) -> dict[str, str] | None:
        """Return the values of the wildcards in a path relative to the run; None for a path of another kind."""
        match = _pattern(self.template).fullmatch(name)
        return match.groupdict() if match else None


# Sources
SOURCE = Place("sources/{source}")
LISTING = Place("sources/{source}/listing")
UNIT_LISTING = Place("sources/{source}/listing/{unit}.json")
PARTS = Place("sources/{source}/parts")
FILE_PARTS = Place("sources/{source}/parts/{file}")
FINGERPRINT = Place("sources/{source}/fingerprints/{unit}.json")
OPT_OUT_ENTRIES = Place("sources/{source}/entries/{unit}.npy")
MANIFEST = Place("sources/{source}/manifest.json")
SOURCE_UNITS = Place("sources/{source}/units")
SOURCE_UNIT = Place("sources/{source}/units/{unit}.json")

# Corpus: a file for each unit of a source
FILTERED = Place("corpus/{corpus}/filtered/{source}.{unit}.parquet")
SIGNATURES = Place("corpus/{corpus}/signatures/{source}.{unit}.parquet")
SCORES = Place("corpus/{corpus}/scores/{source}.{unit}.parquet")
PERPLEXITY = Place("corpus/{corpus}/perplexity/{source}.{unit}.parquet")
RESERVED = Place("corpus/{corpus}/reserved/{source}.{unit}.parquet")
DUPLICATES = Place("corpus/{corpus}/duplicates/{source}.{unit}.parquet")
DEDUPLICATED = Place("corpus/{corpus}/deduplicated/{source}.{unit}.parquet")
MATCHES = Place("corpus/{corpus}/matches/{source}.{unit}.parquet")
CONTAMINATED = Place("corpus/{corpus}/contaminated/{source}.{unit}.parquet")
FINAL_DOCUMENTS = Place("corpus/{corpus}/final/{source}.{unit}.parquet")
REMOVED = Place("corpus/{corpus}/removed/{step}.{source}.{unit}.parquet")

# Corpus: one for each
EQUAL_KEYS = Place("corpus/{corpus}/equal_keys/{share}.parquet")
DUPLICATES_FOLDER = Place("corpus/{corpus}/duplicates")
CONTAMINATED_FOLDER = Place("corpus/{corpus}/contaminated")
QUALITY_MODEL = Place("corpus/{corpus}/quality.safetensors")
QUALITY_EVALUATION = Place("corpus/{corpus}/quality.json")
ITEM_NGRAMS = Place("corpus/{corpus}/ngrams.parquet")
CONTAMINATION = Place("corpus/{corpus}/contamination.json")
LATER_SUITES = Place("corpus/{corpus}/later_suites.json")
STATISTICS = Place("corpus/{corpus}/statistics.json")
DATA_CARD = Place("corpus/{corpus}/README.md")
CROISSANT = Place("corpus/{corpus}/croissant.json")
DATASET = Place("corpus/{corpus}/dataset.json")
SOURCES_TABLE = Place("corpus/{corpus}/sources.parquet")
DATASET_PAGE = Place("corpus/{corpus}/dataset.html")
FORGOTTEN = Place("corpus/{corpus}/forgotten.json")

# Tokenizer and tokens
TOKENIZER = Place("tokenizer/{tokenizer}/tokenizer.json")
TOKENIZER_CONFIGURATION = Place("tokenizer/{tokenizer}/tokenizer_config.json")
FERTILITY = Place("tokenizer/{tokenizer}/fertility.json")
TOKEN_SHARD = Place("tokens/{tokens}/{split}/{shard}.arrow")
SUFFIXES = Place("tokens/{tokens}/suffixes/{shard}.arrow")
TOKEN_INDEX = Place("tokens/{tokens}/index.json")

# Models and their evaluation
MODEL = Place("models/{model}")
MILESTONES = Place("models/{model}/milestones")
MILESTONE = Place("models/{model}/milestones/{step}")
FINAL_MODEL = Place("models/{model}/final")
METRICS = Place("models/{model}/metrics.jsonl")
TENSORBOARD = Place("models/{model}/tensorboard")
BASELINE_RESULTS = Place("baselines/{baseline}/results.json")
BASELINE_ANSWERS = Place("baselines/{baseline}/items.parquet")
RESULTS = Place("evaluation/{model}/{step}/results.json")
ANSWERS = Place("evaluation/{model}/{step}/items.parquet")
SAMPLES = Place("evaluation/{model}/samples.json")
DIFFERENCES = Place("evaluation/differences.json")

# Plan and report
PLAN = Place("plan/plan.json")
REPORT = Place("report")
REPORT_PAGE = Place("report/index.html")
MODEL_CARD = Place("report/model-card.md")
PAPERS = Place("report/papers")
ENERGY_ACCOUNT = Place("report/energy.json")
KEY_FIGURES = Place("report/figures.json")
EXPERIMENT_PAGES = Place("report/experiments")
REMAINS = Place("report/remains.json")

# Provenance; a JOB is a step and the values of its wildcards, joined by dots
PROVENANCE = Place("provenance")
RECORDS = Place("provenance/records")
RECORD = Place("provenance/records/{job}.json")
ATTEMPTS = Place("provenance/attempts")
BATCHES = Place("provenance/batches")
BATCH = Place("provenance/batches/{job}.json")
SOURCES_COMPLETE = Place("provenance/batches/sources")
READINGS = Place("provenance/readings")
FROZEN = Place("provenance/frozen")
ACCOUNTING = Place("provenance/accounting")
PROV = Place("provenance/prov.json")
WORKFLOW_FILES = Place("provenance/workflow")
ATTESTATION_LOG = Place("provenance/attestations.intoto.jsonl")
SIGNER = Place("provenance/signer.json")
CRATE = Place("ro-crate-metadata.json")
RUN_README = Place("README.md")

LOG = Place("logs/{job}.log")
SCRATCH = Place("scratch")
JOB_SCRATCH = Place("scratch/{job}")
SEGMENT_SCRATCH = Place("scratch/{model}/{step}/{code_version}")
