"""All uses of Snakemake beyond its documented interface: command line, memory, locks and jobs.

The imported flags of files and the error are names that a Snakefile has and a module must import.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from logging import Handler
from pathlib import Path
from typing import Any, Literal, NamedTuple

from snakemake.cli import get_argument_parser
from snakemake.exceptions import WorkflowError as WorkflowError
from snakemake.io import ancient as ancient
from snakemake.io import directory as directory
from snakemake.io import report as report
from snakemake_interface_executor_plugins.settings import DeploymentMethod

METADATA_FOLDER = Path(".snakemake/metadata")
LOCKS_FOLDER = ".snakemake/locks"
STREAM_HANDLER = "DefaultStreamHandler"
NAME_BYTES = 254  # Snakemake cuts a longer name into folders of this length that begin with @
# Options with which snakemake makes no files, as attributes of its command line.
OPTIONS_WITHOUT_JOBS = (
    *("lint", "list_target_rules", "list_rules", "print_compilation", "containerize", "generate_unit_tests", "dag"),
    *("rulegraph", "filegraph", "d3dag", "cleanup_metadata", "conda_cleanup_envs", "conda_create_envs_only"),
    *("list_conda_envs", "cleanup_shadow", "container_cleanup_images", "list_changes", "list_input_changes"),
    *("list_params_changes", "list_untracked", "summary", "detailed_summary", "archive", "delete_all_output"),
    *("delete_temp_output", "dryrun", "touch"),
)

Action = Literal["execution", "unlock", "other"]


class Invocation(NamedTuple):
    """A command line of Snakemake: what it does, whether it only plans, its targets, and its resources for rules."""

    action: Action
    is_dry_run: bool
    targets: list[str]
    set_resources: str


def read_invocation(words: list[str]) -> Invocation:
    """Return what the words of a command line ask for; a Snakefile does not know it while it is read."""
    options = vars(get_argument_parser().parse_known_args(words)[0])
    is_report = (options["report"] or options["reporter"]) and not options["report_after_run"]
    is_other = is_report or any(options[name] for name in OPTIONS_WITHOUT_JOBS)
    action: Action = "unlock" if options["unlock"] else "other" if is_other else "execution"
    targets = sorted(map(str, options["targets"] or ()))
    return Invocation(action, bool(options["dryrun"]), targets, str(options["set_resources"] or ""))


def metadata_file(memory: Path, name: str) -> Path:
    """Return the file of an output in a folder of Snakemake's memory, such as .snakemake/metadata."""
    encoded = urlsafe_b64encode(name.encode()).decode()
    *folders, last = (encoded[start : start + NAME_BYTES] for start in range(0, len(encoded), NAME_BYTES))
    return memory.joinpath(*(f"@{folder}" for folder in folders), last)


def has_metadata(memory: Path, name: str) -> bool:
    """Return whether Snakemake's memory has the output of that name."""
    return metadata_file(memory, name).exists()


def find_locks(run: str, locks: Path) -> list[Path]:
    """Return the lock files with files of this run, of a running snakemake or left by a killed one."""
    files = []
    for file in locks.glob("*.lock"):
        with suppress(OSError):  # its snakemake has just ended
            if any(line.startswith(f"{run}/") for line in file.read_text(encoding="utf-8").splitlines()):
                files.append(file)
    return files


class SnakemakeWorkflow:
    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow

    @property
    def is_dry_run(self) -> bool:
        """Whether this process plans and runs nothing."""
        return bool(self._workflow.is_main_process and self._workflow.output_settings.dryrun)

    @property
    def submits_to_slurm(self) -> bool:
        """Whether jobs go through Slurm."""
        return bool(self._workflow.executor_plugin.name == "slurm")

    @property
    def loads_modules(self) -> bool:
        return DeploymentMethod.ENV_MODULES in self._workflow.deployment_settings.deployment_method

    @property
    def shows_own_output(self) -> bool:
        """Whether Snakemake prints its own output: on request, through a logger plugin, or without jobs to show."""
        settings, manager = self._workflow.output_settings, self._workflow.logger_manager
        requested = settings.verbose or settings.debug_dag or settings.printshellcmds
        plugin = any(handler.writes_to_stream for handler in manager.plugin_handlers)
        is_quiet = {"all", "progress"} & {str(quiet) for quiet in settings.quiet or ()}
        return not self._workflow.is_main_process or requested or plugin or bool(is_quiet)

    @property
    def log_file(self) -> str | None:
        """The log file of Snakemake; None in a dry run."""
        return next(iter(self._workflow.logger_manager.get_logfile()), None)

    def replace_output(self, make_handler: Callable[[Any], Handler]) -> None:
        """Replace Snakemake's output on the terminal by a log handler, given Snakemake's output settings."""
        manager = self._workflow.logger_manager
        for handler in [*manager.logger.handlers]:
            if handler.name == STREAM_HANDLER:
                manager.logger.removeHandler(handler)
        manager.logger.addHandler(make_handler(manager.settings))

    def hide_messages(self, pattern: re.Pattern[str]) -> None:
        """Hide messages in Snakemake's output on the terminal."""
        for handler in self._workflow.logger_manager.logger.handlers:
            if handler.name == STREAM_HANDLER:
                handler.addFilter(lambda record: not pattern.search(str(record.msg)))

    def set_modules(self, modules: Any) -> None:
        """Set the environment modules of all rules, like the directive envmodules."""
        for rule in self._workflow.rules:
            rule.env_modules = modules

    def count_jobs_by_rule(self, without: Collection[int] = ()) -> tuple[Counter[str], Counter[str]] | None:
        """Return the number of jobs of each rule to run, and of the others; None before there is a plan.

        Args:
            without: the ids of jobs that are not counted.
        """
        dag = self._workflow.dag
        if dag is None:
            return None
        planned, others = Counter[str](), Counter[str]()
        for job in dag.jobs:
            if not without or job.jobid not in without:
                (planned if dag.needrun(job) else others)[job.rule.name] += 1
        return planned, others

    def job_reasons(self) -> Iterator[tuple[str, dict[str, str], list[str]]]:
        """Yield rule, wildcards and reasons of each job to run; nothing before there is a plan."""
        dag = self._workflow.dag
        for job in dag.needrun_jobs(exclude_finished=False) if dag is not None else ():
            yield job.rule.name, dict(job.wildcards_dict), [*dag.reason(job).get_names()]

    def jobs_to_run(self, rule: str) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
        """Yield wildcards and resources of the jobs of a rule to run."""
        for job in self._workflow.dag.needrun_jobs():
            if job.rule.name == rule:
                yield job.wildcards_dict, job.resources

    def has_job(self, rule: str) -> bool:
        """Return whether there is a job of a rule, done or not."""
        return any(job.rule.name == rule for job in self._workflow.dag.jobs)
