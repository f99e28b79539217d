"""The classes of a step's declaration: job instances, inputs, outputs and resource needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.config.configuration import Config
from pipeline.core.job_records import Versions
from pipeline.core.settings import Settings
from pipeline.layout import SOURCES_COMPLETE, PathTemplate
from pipeline.workflow.expected_run_files import RunFiles, Wildcards

InstanceLister = Callable[[Config], list[tuple[str, ...]]]
BytesOf = Literal["nothing", "batch", "file", "source", "corpus", "tokenizer", "tokens", "shard", "everything"]
JobFiles = Callable[[RunFiles, Wildcards], str | list[str]]
JobValue = Callable[[RunFiles, Wildcards], object]


@dataclass(frozen=True)
class JobInstances:
    """The jobs of a step.

    Attributes:
        wildcards: the wildcards of its rule.
        jobs: returns the wildcard values of a run's jobs.
        units: if a job is a batch, returns the same for its units, each of which has a record.
    """

    wildcards: tuple[str, ...]
    jobs: InstanceLister
    units: InstanceLister | None = None


def batch_instances(wildcards: tuple[str, ...], parents: InstanceLister) -> JobInstances:
    """Return instances with a job for each batch of some sources; a source is the last value of its parents."""
    return JobInstances(
        (*wildcards, "batch"),
        lambda c: [(*parent, batch) for parent in parents(c) for batch in c.job_batches(parent[-1])],
        lambda c: [(*parent, unit) for parent in parents(c) for unit in c.unit_files(parent[-1])],
    )


RUN = JobInstances((), lambda c: [()])


@dataclass(frozen=True)
class ResourceNeeds:
    """The resources of a step's jobs, by the raw bytes that they read; compressed text counts as stored.

    A byte on disk is up to six of text, so the rates are far below those of a core; a time limit costs nothing, but
    memory is billed. The memory of a batch is that of one unit, and each core runs one: the peak was 750 MB for a unit
    of 64 MB (190 MB of text) and 570 MB for one of 7 MB, with `fineweb2` 300 MB more; tokens.shard took 360 MB for 16.
    """

    reads: BytesOf = "nothing"
    minutes: int = 30
    bytes_per_minute: int = 100_000_000
    memory_megabytes: int = 2000
    memory_bytes_per_byte: float = 0.0
    cpus: int = 1  # more than one means all cores of the smallest allocation, for the threads of libraries


UNIT_NEEDS = ResourceNeeds("batch", 60, 20_000_000, 1000, 4.0)
QUICK_BYTES_PER_MINUTE = 1_000_000_000  # bytes in a minute


@dataclass(frozen=True)
class Input:
    """An input of a job.

    Attributes:
        name: the keyword of the step's `run`; any name if the job only waits for the files.
        files: a place of the job's wildcards; a function of the run and the wildcards; or the name of a method of
            `CheckpointInputs`, for files that are known only after a checkpoint of Snakemake.
        is_tracked: whether Snakemake knows the files. If not, they are a parameter: a short list or, in a batch, the
            file of a unit with %unit as its number.
        is_read: whether `run` gets the files; if not, the job only waits for them.
        is_short: whether the command line has tracked files as a short list.
        is_ancient: whether only the existence of the files counts, not their time.
        words: the files on the command line, if not one by one.
    """

    name: str
    files: PathTemplate | JobFiles | str | None = None
    is_tracked: bool = True
    is_read: bool = True
    is_short: bool = False
    is_ancient: bool | Callable[[RunFiles, Wildcards], bool] = False
    words: str | None = None


def wait_for_input(
    name: str, files: PathTemplate | JobFiles | str, is_ancient: bool | Callable[[RunFiles, Wildcards], bool] = False
) -> Input:
    """Return an input that must exist before a job, and that `run` does not get."""
    return Input(name, files, is_read=False, is_ancient=is_ancient)


def untracked_input(name: str, files: PathTemplate | JobFiles, words: str | None = None) -> Input:
    """Return an input that Snakemake tracks by other files, such as those of the batches."""
    return Input(name, files, is_tracked=False, words=words)


def make_files_per_value_function(
    place: PathTemplate, wildcard: str, values: Callable[[Config], Iterable[object]]
) -> JobFiles:
    """Return the function that names a file of the run for each value of a wildcard."""
    return lambda run, w: [run.file(place, **{wildcard: value}) for value in values(run.config)]


def wait_for_all_batches(name: str, step: str) -> Input:
    """Return an input that waits for all batches of a step of the job's corpus."""
    return wait_for_input(name, lambda run, w: run.corpus_batch_record_paths(step, w["corpus"]))


def untracked_corpus_input(name: str, *places: PathTemplate) -> Input:
    """Return the untracked input with the files of all units of the job's corpus, in some folders."""
    return untracked_input(
        name, lambda run, w: [file for place in places for file in run.corpus_files(place, w["corpus"])]
    )


SOURCES_READ = wait_for_input("sources", SOURCES_COMPLETE, is_ancient=True)
"""For every step after the sources, so that jobs planned before a source changed do not run next to that change."""


@dataclass(frozen=True)
class ReportEntry:
    """The entry of an output in Snakemake's report.

    Attributes:
        patterns: the files of an output folder.
    """

    category: str
    labels: Mapping[str, str]
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """An output of a job; in a batch, of each unit.

    Attributes:
        name: the keyword of the step's `run`.
        is_target: whether the target of the step's stage asks for it.
        only_if: returns whether a configuration has this output.
    """

    name: str
    place: PathTemplate
    is_folder: bool = False
    is_target: bool = False
    report_entry: ReportEntry | None = None
    only_if: Callable[[Config], bool] = lambda config: True


@dataclass(frozen=True)
class Step:
    """The declaration of a step, `run` of `pipeline/FOLDER/NAME.py`, from which its rule, records and logs are made.

    Attributes:
        name: FOLDER.NAME.
        instances: its jobs.
        message: the message of Snakemake at the start of a job.
        settings: returns the settings of a job, by the configuration and the job's wildcards.
        inputs: in the order of the command line.
        need: the resources of a job; None for steps on GPUs, whose resources `pipeline.slurm.resources` decides.
        threads: threads of libraries, limited by the machine. A batch has one for each unit.
        content_hash: the hash of what a batch reads of the raw files.
        reads_raw: whether it gets the folder of its source's raw files.
        reuses: whether a batch waits for the identical batch of an earlier corpus, and reuses its files.
        private: the name under which its jobs may keep removed texts.
        scratch: the folder for intermediate results of a job.
        parameters: further values that a job depends on, which its command line does not show.
        kept_versions: the versions that a finished job keeps; None where it has those of today.
        operation: further settings of a job that do not change its result.
        options: resources that the command line has as options.
        resources: further resources of a job; changes rerun nothing.
        is_supervised: whether it starts processes itself, and therefore runs outside of the platform's image.
        first_command: the command that runs before it, by the folder of the run.
        is_local: whether it runs on the login node, in less time than a job needs to start.
        is_checkpoint: whether Snakemake plans again after it.
        constraints: the constraints of its wildcards.
        stage: its stage, if that is not its folder.
        listed_after: the step of that stage after which it is listed.
    """

    name: str
    instances: JobInstances
    message: str
    settings: Callable[[Config, Wildcards], Settings] = lambda config, i: Settings()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    need: ResourceNeeds | None = field(default_factory=ResourceNeeds)
    threads: int = 1
    content_hash: JobValue | None = None
    reads_raw: bool = False
    reuses: bool = False
    private: str | None = None
    scratch: PathTemplate | JobValue | None = None
    parameters: Mapping[str, JobValue] = field(default_factory=dict)
    kept_versions: Callable[[RunFiles, Wildcards], Versions | None] | None = None
    operation: Callable[[RunFiles, Wildcards], dict[str, str]] | None = None
    options: tuple[str, ...] = ()
    resources: Mapping[str, JobValue] = field(default_factory=dict)
    is_supervised: bool = False
    first_command: Callable[[str], str] | None = None
    is_local: bool = False
    is_checkpoint: bool = False
    constraints: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    listed_after: str | None = None

    def __post_init__(self) -> None:
        if not self.stage:
            object.__setattr__(self, "stage", self.name.partition(".")[0])

    @property
    def rule_name(self) -> str:
        return self.name.replace(".", "_")

    @property
    def has_folders(self) -> bool:
        """Whether it writes folders, whose files Snakemake does not know."""
        return any(output.is_folder for output in self.outputs)

    @property
    def job_name_template(self) -> str:
        """The name of its jobs with wildcards, as in logs and records."""
        return ".".join([self.name, *(f"{{{name}}}" for name in self.instances.wildcards)])
