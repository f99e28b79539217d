"""All paths of a results folder.

A `Place` is a template relative to the folder of a run. Its wildcards have the names of the rules' wildcards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

# What wildcards stand for: names of jobs and the like have dots, all other names have none.
_VALUES = {"split": "train|validation", "job": "[^/]+", "attempt": "[^/]+", "name": "[^/]+"}


@cache
def _regex(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = (f"(?P<{wildcard}>{_VALUES.get(wildcard, '[^/.]+')})" for wildcard in parts[1::2])
    return re.compile("".join(parts))


class _Kept(dict[str, object]):
    def __missing__(self, wildcard: str) -> str:
        return f"{{{wildcard}}}"


class Place(str):
    """One kind of file or folder below the folder of a run: its path relative to that folder, or a template of it."""

    __slots__ = ()

    def name(self, **values: object) -> str:
        """Return the path relative to the run, as records name it."""
        return self.format_map(values)

    def path(self, run: Path, **values: object) -> Path:
        """Return the path in the folder of a run."""
        return run / self.format_map(values)

    def in_run(self, run: str, **values: object) -> str:
        """Return the path in the folder of a run; wildcards without a value stay, as rules have them."""
        return f"{run}/{self.fill(**values)}"

    def fill(self, **values: object) -> Place:
        """Return the place with some wildcards filled in."""
        return Place(self.format_map(_Kept(values)))

    def file(self, name: str) -> Place:
        """Return the place of a file or folder in this folder, which its step's declaration alone names."""
        return Place(f"{self}/{name}")

    def pattern(self, **values: object) -> str:
        """Return the path relative to the run with `*` for each wildcard without a value."""
        return self.format_map(defaultdict(lambda: "*", values))

    def glob(self, run: Path, **values: object) -> list[Path]:
        """Return the sorted paths of this kind in the folder of a run, without hidden ones, which are being written.

        A value may be a pattern; a wildcard without a value matches any name.
        """
        return sorted(run.glob(re.sub(r"(?<=/)\*", "[!.]*", self.pattern(**values))))

    def parse(self, name: str) -> dict[str, str] | None:
        """Return the values of the wildcards in a path relative to the run; None for a path of another kind."""
        match = _regex(self).fullmatch(name)
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

CORPUS = Place("corpus/{corpus}")

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
REMOVED_FOLDER = Place("corpus/{corpus}/removed")
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
DATASET = Place("corpus/{corpus}/dataset.json")
FORGOTTEN = Place("corpus/{corpus}/forgotten.json")

# Tokenizer and tokens
TOKENIZER = Place("tokenizer/{tokenizer}/tokenizer.json")
TOKENIZER_CONFIGURATION = Place("tokenizer/{tokenizer}/tokenizer_config.json")
FERTILITY = Place("tokenizer/{tokenizer}/fertility.json")
TOKEN_SET = Place("tokens/{tokens}")
TOKEN_SHARD = Place("tokens/{tokens}/{split}/{shard}.arrow")
SUFFIXES = Place("tokens/{tokens}/suffixes/{shard}.arrow")
TOKEN_INDEX = Place("tokens/{tokens}/index.json")

# Models and their evaluation
MODEL = Place("models/{model}")
MILESTONE = Place("models/{model}/milestones/{step}")
FINAL_MODEL = Place("models/{model}/final")
METRICS = Place("models/{model}/metrics.jsonl")
BASELINE_RESULTS = Place("baselines/{baseline}/results.json")
BASELINE_ANSWERS = Place("baselines/{baseline}/items.parquet")
EVALUATION = Place("evaluation/{model}")
RESULTS = Place("evaluation/{model}/{step}/results.json")
ANSWERS = Place("evaluation/{model}/{step}/items.parquet")
SAMPLES = Place("evaluation/{model}/samples.json")
DIFFERENCES = Place("evaluation/differences.json")

# Plan and report
PLAN = Place("plan/plan.json")
REPORT = Place("report")
REPORT_PAGE = Place("report/index.html")
REPORT_JOBS = Place("report/jobs.html")
MODEL_CARD = Place("report/model-card.md")
PAPERS = Place("report/papers")
ENERGY_ACCOUNT = Place("report/energy.json")
KEY_FIGURES = Place("report/figures.json")
REMAINS = Place("report/remains.json")

# Provenance; a JOB is a step and the values of its wildcards, joined by dots
PROVENANCE = Place("provenance")
RECORDS = Place("provenance/records")
RECORD = Place("provenance/records/{job}.json")
SEGMENT_RECORD = Place("provenance/records/pretrain.segment.{model}.{step}.json")
CRATE_RECORD = Place("provenance/records/provenance.crate.json")
REPORT_RECORD = Place("provenance/records/report.page.json")
ATTEMPTS = Place("provenance/attempts")
ATTEMPT = Place("provenance/attempts/{attempt}.json")
BATCHES = Place("provenance/batches")
BATCH = Place("provenance/batches/{job}.json")
SOURCES_COMPLETE = Place("provenance/batches/sources")
READINGS = Place("provenance/readings")
FROZEN = Place("provenance/frozen")
FROZEN_CONFIGURATION = Place("provenance/frozen/{number}.json")
ENVIRONMENTS = Place("provenance/environments")
ENVIRONMENT = Place("provenance/environments/{digest}.json")
ACCOUNTING = Place("provenance/accounting")
EXTERNAL_METERS = Place("provenance/accounting/books")
ACCOUNTING_PROBLEMS = Place("provenance/accounting/books/problems.json")
INVOCATIONS = Place("provenance/accounting/starts")
INVOCATION = Place("provenance/accounting/starts/{name}.json")
RUN_LOCK = Place("provenance/accounting/lock")
PROV = Place("provenance/prov.json")
WORKFLOW_FILES = Place("provenance/workflow")
ATTESTATION_LOG = Place("provenance/attestations.intoto.jsonl")
SIGNER = Place("provenance/signer.json")
PUBLIC_KEY = Place("provenance/signer.pem")
MODEL_SIGNATURES = Place("provenance/signatures")
MODEL_SIGNATURE = Place("provenance/signatures/{model}.sig")
TIMESTAMPS = Place("provenance/timestamps")
TIMESTAMP = Place("provenance/timestamps/{sha256}.tsr")
CRATE = Place("ro-crate-metadata.json")
RUN_README = Place("README.md")

LOGS = Place("logs")
LOG = Place("logs/{job}.log")
SLURM_LOGS = Place("logs/slurm")
SCRATCH = Place("scratch")
PROGRESS = Place("scratch/progress/run.json")
JOB_SCRATCH = Place("scratch/{job}")
SEGMENT_SCRATCH = Place("scratch/{model}/{step}/{code_version}")
SEGMENT_STARTS = Place("scratch/{model}/{step}/{code_version}/starts")
RECOVERY_STATE = Place("scratch/{model}/{step}/{code_version}/recovery/{name}/state.json")

# Files of a folder with a checkpoint
CHECKPOINT_STATE = "state.json"
CHECKPOINT_MODEL = "huggingface"
METRICS_FILE = "metrics.jsonl"
