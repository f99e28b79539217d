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
_VALUES |= {"stamp": r"\d{8}T\d{12,}", "process": r"\d+"}


@cache
def _template_regex(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = (f"(?P<{wildcard}>{_VALUES.get(wildcard, '[^/.]+')})" for wildcard in parts[1::2])
    return re.compile("".join(parts))


class _Kept(dict[str, object]):
    def __missing__(self, wildcard: str) -> str:
        return f"{{{wildcard}}}"


class PathTemplate(str):
    """One kind of file or folder below the folder of a run: its path relative to that folder, or a template of it."""

    __slots__ = ()

    def relative_path(self, **values: object) -> str:
        """Return the path relative to the run, as records name it."""
        return self.format_map(values)

    def path(self, run: Path, **values: object) -> Path:
        """Return the path in the folder of a run."""
        return run / self.format_map(values)

    def path_with_wildcards(self, run: str, **values: object) -> str:
        """Return the path in the folder of a run; wildcards without a value stay, as rules have them."""
        return f"{run}/{self.fill(**values)}"

    def fill(self, **values: object) -> PathTemplate:
        """Return the place with some wildcards filled in."""
        return PathTemplate(self.format_map(_Kept(values)))

    def child(self, name: str) -> PathTemplate:
        """Return the place of a file or folder in this folder, which its step's declaration alone names."""
        return PathTemplate(f"{self}/{name}")

    def glob_pattern(self, **values: object) -> str:
        """Return the path relative to the run with `*` for each wildcard without a value."""
        return self.format_map(defaultdict(lambda: "*", values))

    def glob(self, run: Path, **values: object) -> list[Path]:
        """Return the sorted paths of this kind in the folder of a run, without hidden ones, which are being written.

        A value may be a pattern; a wildcard without a value matches any name.
        """
        return sorted(run.glob(re.sub(r"(?<=/)\*", "[!.]*", self.glob_pattern(**values))))

    def parse(self, name: str) -> dict[str, str] | None:
        """Return the values of the wildcards in a path relative to the run; None for a path of another kind."""
        match = _template_regex(self).fullmatch(name)
        return match.groupdict() if match else None


# Sources
SOURCE = PathTemplate("sources/{source}")
LISTING = PathTemplate("sources/{source}/listing")
UNIT_LISTING = PathTemplate("sources/{source}/listing/{unit}.json")
PARTS = PathTemplate("sources/{source}/parts")
FILE_PARTS = PathTemplate("sources/{source}/parts/{file}")
FINGERPRINT = PathTemplate("sources/{source}/fingerprints/{unit}.json")
OPT_OUT_ENTRIES = PathTemplate("sources/{source}/entries/{unit}.npy")
MANIFEST = PathTemplate("sources/{source}/manifest.json")
SOURCE_UNITS = PathTemplate("sources/{source}/units")

CORPUS = PathTemplate("corpus/{corpus}")

# Corpus: a file for each unit of a source
FILTERED = PathTemplate("corpus/{corpus}/filtered/{source}.{unit}.parquet")
SIGNATURES = PathTemplate("corpus/{corpus}/signatures/{source}.{unit}.parquet")
SCORES = PathTemplate("corpus/{corpus}/scores/{source}.{unit}.parquet")
CLASSIFIER_SCORES = PathTemplate("corpus/{corpus}/classifiers/{classifier}/{source}.{unit}.parquet")
PERPLEXITY = PathTemplate("corpus/{corpus}/perplexity/{source}.{unit}.parquet")
RESERVED = PathTemplate("corpus/{corpus}/reserved/{source}.{unit}.parquet")
DUPLICATES = PathTemplate("corpus/{corpus}/duplicates/{source}.{unit}.parquet")
DEDUPLICATED = PathTemplate("corpus/{corpus}/deduplicated/{source}.{unit}.parquet")
MATCHES = PathTemplate("corpus/{corpus}/matches/{source}.{unit}.parquet")
CONTAMINATED = PathTemplate("corpus/{corpus}/contaminated/{source}.{unit}.parquet")
FINAL_DOCUMENTS = PathTemplate("corpus/{corpus}/final/{source}.{unit}.parquet")
REMOVED_FOLDER = PathTemplate("corpus/{corpus}/removed")
REMOVED = PathTemplate("corpus/{corpus}/removed/{step}.{source}.{unit}.parquet")

# Corpus: one for each
EQUAL_KEYS = PathTemplate("corpus/{corpus}/equal_keys/{share}.parquet")
DUPLICATES_FOLDER = PathTemplate("corpus/{corpus}/duplicates")
CONTAMINATED_FOLDER = PathTemplate("corpus/{corpus}/contaminated")
QUALITY_MODEL = PathTemplate("corpus/{corpus}/quality.safetensors")
QUALITY_EVALUATION = PathTemplate("corpus/{corpus}/quality.json")
ITEM_NGRAMS = PathTemplate("corpus/{corpus}/ngrams.parquet")
CONTAMINATION = PathTemplate("corpus/{corpus}/contamination.json")
LATER_SUITES = PathTemplate("corpus/{corpus}/later_suites.json")
STATISTICS = PathTemplate("corpus/{corpus}/statistics.json")
DATASET = PathTemplate("corpus/{corpus}/dataset.json")
FORGOTTEN = PathTemplate("corpus/{corpus}/forgotten.json")

# Interleaved documents of text and images
INTERLEAVED = PathTemplate("interleaved/{interleaved}")
INTERLEAVED_EXTRACTED = PathTemplate("interleaved/{interleaved}/extracted/{source}.{unit}.parquet")
INTERLEAVED_DOCUMENTS = PathTemplate("interleaved/{interleaved}/documents")
INTERLEAVED_REMOVED = PathTemplate("interleaved/{interleaved}/removed/extract.{source}.{unit}.parquet")

# Tokenizer and tokens
TOKENIZER = PathTemplate("tokenizer/{tokenizer}/tokenizer.json")
TOKENIZER_CONFIGURATION = PathTemplate("tokenizer/{tokenizer}/tokenizer_config.json")
FERTILITY = PathTemplate("tokenizer/{tokenizer}/fertility.json")
TOKEN_SET = PathTemplate("tokens/{tokens}")
TOKEN_SHARD = PathTemplate("tokens/{tokens}/{split}/{shard}.arrow")
SUFFIXES = PathTemplate("tokens/{tokens}/suffixes/{shard}.arrow")
TOKEN_INDEX = PathTemplate("tokens/{tokens}/index.json")

# Models and their evaluation
MODEL = PathTemplate("models/{model}")
MILESTONE = PathTemplate("models/{model}/milestones/{step}")
FINAL_MODEL = PathTemplate("models/{model}/final")
METRICS = PathTemplate("models/{model}/metrics.jsonl")
DOCUMENT_LOSSES = PathTemplate("models/{model}/document_losses.parquet")
BASELINE_RESULTS = PathTemplate("baselines/{baseline}/results.json")
BASELINE_ANSWERS = PathTemplate("baselines/{baseline}/items.parquet")
EVALUATION = PathTemplate("evaluation/{model}")
RESULTS = PathTemplate("evaluation/{model}/{step}/results.json")
ANSWERS = PathTemplate("evaluation/{model}/{step}/items.parquet")
SAMPLES = PathTemplate("evaluation/{model}/samples.json")
DIFFERENCES = PathTemplate("evaluation/differences.json")

# Plan and report
PLAN = PathTemplate("plan/plan.json")
REPORT = PathTemplate("report")
REPORT_PAGE = PathTemplate("report/index.html")
REPORT_JOBS = PathTemplate("report/jobs.html")
MODEL_CARD = PathTemplate("report/model-card.md")
PAPERS = PathTemplate("report/papers")
ENERGY_ACCOUNT = PathTemplate("report/energy.json")
KEY_FIGURES = PathTemplate("report/figures.json")
REMAINS = PathTemplate("report/remains.json")

# Provenance; a JOB is a step and the values of its wildcards, joined by dots
PROVENANCE = PathTemplate("provenance")
RECORDS = PathTemplate("provenance/records")
RECORD = PathTemplate("provenance/records/{job}.json")
SEGMENT_RECORD = PathTemplate("provenance/records/pretrain.segment.{model}.{step}.json")
CRATE_RECORD = PathTemplate("provenance/records/provenance.crate.json")
REPORT_RECORD = PathTemplate("provenance/records/report.page.json")
ATTEMPTS = PathTemplate("provenance/attempts")
ATTEMPT = PathTemplate("provenance/attempts/{attempt}.json")
BATCHES = PathTemplate("provenance/batches")
BATCH = PathTemplate("provenance/batches/{job}.json")
SOURCES_COMPLETE = PathTemplate("provenance/batches/sources")
BATCH_ARCHIVES = PathTemplate("provenance/archives")
BATCH_ARCHIVE = PathTemplate("provenance/archives/{stamp}.{process}.{job}.zip")
UNIT_RECORDS = PathTemplate("provenance/archives/{job}.json")
# Outputs of units that move into an archive below the folder of their source or corpus, and how its job's name begins.
OUTPUT_ARCHIVES = tuple(
    PathTemplate(f"{folder}/archives/{{stamp}}.{{process}}.{{job}}.zip") for folder in (SOURCE, CORPUS)
)
ARCHIVED_OUTPUTS = {
    UNIT_LISTING: "sources.listing.{source}",
    FINGERPRINT: "sources.fingerprint.{source}.",
    OPT_OUT_ENTRIES: "opt_out.entries.{source}.",
    SOURCE_UNITS.child("{unit}.json"): "sources.manifest.{source}",
    SIGNATURES: "corpus.signatures.{corpus}.{source}.",
    SCORES: "corpus.scores.{corpus}.{source}.",
    PERPLEXITY: "corpus.perplexity.{corpus}.{source}.",
    RESERVED: "opt_out.reserved.{corpus}.{source}.",
    DUPLICATES: "corpus.find_duplicates.{corpus}",
    DEDUPLICATED: "corpus.deduplicate.{corpus}.{source}.",
    MATCHES: "corpus.matches.{corpus}.{source}.",
    CONTAMINATED: "corpus.find_items.{corpus}",
    REMOVED: "corpus.{step}.{corpus}.{source}.",
}
READINGS = PathTemplate("provenance/readings")
FROZEN = PathTemplate("provenance/frozen")
FROZEN_CONFIGURATION = PathTemplate("provenance/frozen/{number}.json")
ENVIRONMENTS = PathTemplate("provenance/environments")
ENVIRONMENT = PathTemplate("provenance/environments/{digest}.json")
ACCOUNTING = PathTemplate("provenance/accounting")
EXTERNAL_METERS = PathTemplate("provenance/accounting/books")
ACCOUNTING_PROBLEMS = PathTemplate("provenance/accounting/books/problems.json")
INVOCATIONS = PathTemplate("provenance/accounting/starts")
INVOCATION = PathTemplate("provenance/accounting/starts/{name}.json")
RUN_LOCK = PathTemplate("provenance/accounting/lock")
FORMER_PROV = PathTemplate("provenance/prov.json")  # of runs of earlier versions
WORKFLOW_FILES = PathTemplate("provenance/workflow")
ATTESTATION_LOG = PathTemplate("provenance/attestations.intoto.jsonl")
SIGNER = PathTemplate("provenance/signer.json")
PUBLIC_KEY = PathTemplate("provenance/signer.pem")
MODEL_SIGNATURES = PathTemplate("provenance/signatures")
MODEL_SIGNATURE = PathTemplate("provenance/signatures/{model}.sig")
TIMESTAMPS = PathTemplate("provenance/timestamps")
TIMESTAMP = PathTemplate("provenance/timestamps/{sha256}.tsr")
CRATE = PathTemplate("ro-crate-metadata.json")
RUN_README = PathTemplate("README.md")

LOGS = PathTemplate("logs")
LOG = PathTemplate("logs/{job}.log")
SLURM_LOGS = PathTemplate("logs/slurm")
SCRATCH = PathTemplate("scratch")
PROGRESS = PathTemplate("scratch/progress/run.json")
JOB_SCRATCH = PathTemplate("scratch/{job}")
SEGMENT_SCRATCH = PathTemplate("scratch/{model}/{step}/{code_version}")
SEGMENT_STARTS = PathTemplate("scratch/{model}/{step}/{code_version}/starts")
RECOVERY_STATE = PathTemplate("scratch/{model}/{step}/{code_version}/recovery/{name}/state.json")

# Files of a folder with a checkpoint
CHECKPOINT_STATE = "state.json"
CHECKPOINT_MODEL = "huggingface"
METRICS_FILE = "metrics.jsonl"
