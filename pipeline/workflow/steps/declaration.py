"""The vocabulary in which a step is declared: what it has one job for, reads, writes and asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.config.configuration import Config
from pipeline.core.records import Versions
from pipeline.core.settings import Settings
from pipeline.layout import SOURCES_COMPLETE, Place
from pipeline.workflow.run_files import RunFiles, Wildcards

Instances = Callable[[Config], list[tuple[str, ...]]]
Bytes = Literal["nothing", "batch", "file", "source", "corpus", "tokenizer", "tokens", "shard", "everything"]
Files = Callable[[RunFiles, Wildcards], str | list[str]]
Value = Callable[[RunFiles, Wildcards], object]


@dataclass(frozen=True)
class Per:
    """What a step has one job for.

    Attributes:
        wildcards: those of its rule.
        jobs: the values of the wildcards of a run's jobs.
        units: where a job works on a batch, the same for its units: each has a record of its own.
    """

    wildcards: tuple[str, ...]
    jobs: Instances
    units: Instances | None = None


def per_batch(wildcards: tuple[str, ...], parents: Instances) -> Per:
    """Return what has a job for each batch of some sources; a source is the last of its parents' values."""
    return Per(
        (*wildcards, "batch"),
        lambda c: [(*parent, batch) for parent in parents(c) for batch in c.batches(parent[-1])],
        lambda c: [(*parent, unit) for parent in parents(c) for unit in c.units(parent[-1])],
    )


RUN = Per((), lambda c: [()])


@dataclass(frozen=True)
class Need:
    """What the jobs of a step ask for, by the raw bytes of what they read; compressed text counts as it is stored.

    A byte on disk is up to six of text, so the rates are far below what a core does; a limit costs nothing, but memory
    is billed. Of a batch, memory is that of one unit, one of which runs on each core: the most was 750 MB for a unit
    of 64 MB (190 MB of text) and 570 MB for one of 7 MB, with `fineweb2` 300 MB more; tokens.shard took 360 MB for 16.
    """

    reads: Bytes = "nothing"
    minutes: int = 30
    bytes_per_minute: int = 100_000_000
    memory_megabytes: int = 2000
    memory_bytes_per_byte: float = 0.0
    cpus: int = 1  # or, where it is more than one, all of the smallest allocation: the threads are the library's own


UNIT = Need("batch", 60, 20_000_000, 1000, 4.0)
QUICK = 1_000_000_000  # bytes in a minute


@dataclass(frozen=True)
class Input:
    """What a job reads.

    Attributes:
        name: the keyword of the step's `run`; of what a job only waits for, any name.
        files: a place of the job's wildcards; a function of the run and the wildcards; or the name of a method of
            `CheckpointInputs`, for what is known behind a checkpoint of Snakemake alone.
        is_seen: whether Snakemake knows the files. If not, they are a parameter: a list in few words, or of a batch
            the file of a unit, for whose number %unit stands.
        is_read: whether `run` gets the files; if not, the job only waits for them.
        is_short: whether the command line gives files that Snakemake knows in few words.
        is_ancient: whether only the existence of the files counts, not their time.
        words: how the command line names the files, where that is not one by one.
    """

    name: str
    files: Place | Files | str | None = None
    is_seen: bool = True
    is_read: bool = True
    is_short: bool = False
    is_ancient: bool | Callable[[RunFiles, Wildcards], bool] = False
    words: str | None = None


def waits_for(
    name: str, files: Place | Files | str, is_ancient: bool | Callable[[RunFiles, Wildcards], bool] = False
) -> Input:
    """Return what has to be there before a job, and is not read under its name."""
    return Input(name, files, is_read=False, is_ancient=is_ancient)


def unseen(name: str, files: Place | Files, words: str | None = None) -> Input:
    """Return what a job reads of which Snakemake knows other files, such as those of the batches."""
    return Input(name, files, is_seen=False, words=words)


def each(place: Place, wildcard: str, values: Callable[[Config], Iterable[object]]) -> Files:
    """Return the function that names a file of the run for each value of a wildcard."""
    return lambda run, w: [run.file(place, **{wildcard: value}) for value in values(run.config)]


def all_batches(name: str, step: str) -> Input:
    """Return that all batches of a step are done for the corpus of the job."""
    return waits_for(name, lambda run, w: run.corpus_batches(step, w["corpus"]))


def all_units(name: str, *places: Place) -> Input:
    """Return the files of all units of the corpus of the job, in some folders."""
    return unseen(name, lambda run, w: [file for place in places for file in run.corpus_files(place, w["corpus"])])


SOURCES_READ = waits_for("sources", SOURCES_COMPLETE, is_ancient=True)
"""Of every step behind the sources: what was left to do before a source changed does not run beside that change."""


@dataclass(frozen=True)
class Shown:
    """How Snakemake's report shows an output.

    Attributes:
        patterns: of a folder, which files of it.
    """

    category: str
    labels: Mapping[str, str]
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """What a job writes; of a batch, what each unit writes.

    Attributes:
        name: the keyword of the step's `run`.
        is_target: whether the target of the step's stage asks for it.
        only_if: of which configurations it is written; of all, where nothing is said.
    """

    name: str
    place: Place
    is_folder: bool = False
    is_target: bool = False
    shown: Shown | None = None
    only_if: Callable[[Config], bool] = lambda config: True


@dataclass(frozen=True)
class Step:
    """A step, which is `run` of `pipeline/FOLDER/NAME.py`; its rule, requests, records, logs and targets follow.

    Attributes:
        name: FOLDER.NAME.
        per: what it has one job for.
        message: what Snakemake says when a job begins.
        settings: the settings of a job, by the configuration and the job's wildcards; none where nothing is said.
        inputs: in the order of the command line.
        need: what a job asks Slurm for; None of steps that need GPUs, which `pipeline.slurm.resources` decides.
        threads: of the libraries; on a smaller machine as many as it has. A batch has those of its units.
        of: the hash of what a batch reads of the raw files.
        reads_raw: whether it gets the folder of its source's raw files.
        reuses: whether a batch waits for the same batch of an earlier corpus, whose files it takes where it is alike.
        private: by what name its jobs may keep the texts of what they remove.
        scratch: the folder for what is finished of a job before its end.
        parameters: what else a job depends on and its command line does not show.
        kept: the versions that a finished job was made with and stays planned with; None where it has those of today.
        operation: settings of a job that change no number of its result, besides those of the configuration.
        options: resources that the command line has as options.
        resources: what else Snakemake is to know of a job; a change of it reruns nothing.
        is_supervised: whether it starts processes itself, so that it stays outside of the platform's image.
        before: the command that runs before it, by the folder of the run.
        is_local: whether it runs on the login node, in less time than a job takes to start.
        is_checkpoint: whether Snakemake plans anew behind it.
        constraints: of its wildcards.
        stage: the stage that it belongs to, where that is not its folder.
        after: the step of that stage behind which it is listed.
    """

    name: str
    per: Per
    message: str
    settings: Callable[[Config, Wildcards], Settings] = lambda config, i: Settings()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    need: Need | None = field(default_factory=Need)
    threads: int = 1
    of: Value | None = None
    reads_raw: bool = False
    reuses: bool = False
    private: str | None = None
    scratch: Place | Value | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    kept: Callable[[RunFiles, Wildcards], Versions | None] | None = None
    operation: Callable[[RunFiles, Wildcards], dict[str, str]] | None = None
    options: tuple[str, ...] = ()
    resources: Mapping[str, Value] = field(default_factory=dict)
    is_supervised: bool = False
    before: Callable[[str], str] | None = None
    is_local: bool = False
    is_checkpoint: bool = False
    constraints: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    after: str | None = None

    def __post_init__(self) -> None:
        if not self.stage:
            object.__setattr__(self, "stage", self.name.partition(".")[0])

    @property
    def rule(self) -> str:
        """The name of its rule."""
        return self.name.replace(".", "_")

    @property
    def has_folders(self) -> bool:
        """Whether it writes folders, of whose files Snakemake knows nothing."""
        return any(output.is_folder for output in self.outputs)

    @property
    def job(self) -> str:
        """The name of its jobs, with the wildcards, as logs and records have it."""
        return ".".join([self.name, *(f"{{{name}}}" for name in self.per.wildcards)])
