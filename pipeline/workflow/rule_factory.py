"""Make the Snakemake rule of a step from its declaration."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import compress_numbered_paths
from pipeline.layout import (
    BATCH,
    LISTING,
    LOG,
    MANIFEST,
    REMOVED,
    SOURCE_UNITS,
    SOURCES_COMPLETE,
    UNIT_RECORDS,
    PathTemplate,
)
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.snakemake_internals import WorkflowError, ancient, directory, report
from pipeline.workflow.stale_records import StaleRecords
from pipeline.workflow.startup import Startup
from pipeline.workflow.steps.declaration import Input, JobFiles, JobValue, Output, Step
from pipeline.workflow.steps.pretrain import previous_milestone


@dataclass(frozen=True)
class CheckpointInputs:
    """Input functions for files that are known only after a checkpoint of Snakemake.

    The content of the checkpoint's files, not their time, decides whether the steps after it run again.

    Attributes:
        checkpoints: Snakemake's object of that name.
    """

    dag: Dag
    stale: StaleRecords
    checkpoints: Any
    startup: Startup

    def sources_complete_checkpoint_inputs(self) -> list[str]:
        """Return the inputs of the checkpoint `sources_complete`."""
        names = [source.name for source in self.dag.config.sources]
        return [self.dag.file(place, source=name) for place in (MANIFEST, SOURCE_UNITS, LISTING) for name in names]

    def sources_complete_file(self) -> str:
        """Return the output of the checkpoint `sources_complete`."""
        return self.dag.file(SOURCES_COMPLETE)

    def sources_complete(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the output of the checkpoint `sources_complete`, for a batch that reads units of a source."""
        output = self.checkpoints.sources_complete.get().output
        path = self.dag.batch_record_path(step.name, *(wildcards[name] for name in step.instances.wildcards))
        self.startup.delete_records(
            self.stale.find_changed_batch(path, self.dag.batch_hash(wildcards)), "read other raw files"
        )
        return output

    def imported_model_token_index(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the index of the tokens of a model that begins with a pretrained one."""
        tokens = self.dag.config.models[wildcards["model"]].tokens
        return self.checkpoints.tokens_index.get(tokens=tokens).output.index

    def tokens_index(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the index of the tokens that a segment is trained on."""
        model, last = wildcards["model"], wildcards["step"]
        index = self.imported_model_token_index(step, wildcards)
        if sentence := self.dag.finished.describe_changed_tokens(model, int(last)):
            self.startup.warn_once(sentence)
        self.startup.delete_records(self.stale.find_changed_tokens(model, last), "read other tokens")
        return index

    def previous_milestone(self, step: Step, wildcards: Wildcards) -> list[str]:
        """Return the milestone that a segment starts from; refuse to discard finished training."""
        if refusal := self.dag.finished.find_refusal(wildcards["model"]):
            try:
                self.startup.refuse_once(refusal)
            except InputError as error:
                raise WorkflowError(str(error)) from None
        return previous_milestone(self.dag, wildcards)


Directive = Callable[[Any], Any]
BATCH_OUTPUTS = {"batch": BATCH, "unit_records": UNIT_RECORDS}


@dataclass(frozen=True)
class Rule:
    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    log: str
    threads: int | Directive
    resources: Mapping[str, Any]
    params: Mapping[str, Any]
    constraints: Mapping[str, str]
    message: str
    is_local: bool
    shell: str


def shell_command(step: Step, before: str = "") -> str:
    """Return the shell command template of a step; `before` is a command that runs first."""
    package, _, name = step.name.partition(".")
    is_batch = step.instances.units is not None
    made = "params" if is_batch else "output"
    words = [f"{before} &&"] if before else []
    words += ["{resources.supervisor}" if step.is_supervised else "python", f"-m pipeline {package} {name}"]
    words += ["{params.contract:q}"]
    words += ["--units {params.units:q} --batch {output.batch:q}"] if is_batch else []
    words += ["--of={params.of}"] if step.content_hash else []
    words += ["--raw={params.raw:q}"] if step.reads_raw else []
    words += ["--scratch={params.scratch:q}"] if step.scratch is not None else []
    words += [f"--{name}={{resources.{name}:q}}" for name in step.options]
    words += [f"--input {one.name} {_input_words(one)}" for one in step.inputs if one.is_read]
    words += [f"--output {one.name} {{{made}.{one.name}:q}}" for one in step.outputs]
    words += ["--private={params.private:q}"] if step.private else []
    words += [f"--record {{{made}.record:q}} {'>>' if before else '>'} {{log:q}} 2>&1"]
    return " ".join(words)


def _input_words(read: Input) -> str:
    from_input = read.is_tracked and not read.is_short
    return read.words or f"{{{'input' if from_input else 'params'}.{read.name}:q}}"


@dataclass(frozen=True)
class RuleFactory:
    """Makes the rules of one run.

    Attributes:
        dag: the jobs of the run.
        resources_of: returns the resources of a step's jobs.
        units_of_batch: returns the number of units of a batch, which are its threads on one machine.
        behind: the files that are known only after a checkpoint of Snakemake.
        supervisor: returns the program that starts the processes of a training, known when all rules are read.
    """

    dag: Dag
    resources_of: Callable[[str], Mapping[str, Any]]
    units_of_batch: Directive
    behind: CheckpointInputs
    supervisor: Callable[[], str]

    def make_rule(self, step: Step) -> Rule:
        step = replace(step, outputs=tuple(one for one in step.outputs if one.only_if(self.dag.config)))
        is_batch = step.instances.units is not None
        made: dict[str, Any] = {output.name: self._output(output) for output in step.outputs}
        return Rule(
            name=step.rule_name,
            inputs=self._inputs(step),
            outputs={name: self.dag.file(place, job=step.job_name_template) for name, place in BATCH_OUTPUTS.items()}
            if is_batch
            else made | {"record": self.dag.record_path_template(step.name)},
            log=self.dag.file(LOG, job=step.job_name_template),
            threads=self.units_of_batch if is_batch else step.threads,
            resources=self._resources(step),
            params=self._params(step),
            constraints=step.constraints,
            message=step.message,
            is_local=step.is_local,
            shell=shell_command(step, step.first_command(shlex.quote(self.dag.run)) if step.first_command else ""),
        )

    def _inputs(self, step: Step) -> dict[str, Any]:
        inputs = {one.name: self._input(step, one) for one in step.inputs if one.is_tracked}
        return inputs | ({"reused": ancient(self.dag.identical_earlier_batch(step.name))} if step.reuses else {})

    def _input(self, step: Step, read: Input) -> Any:
        if isinstance(read.files, PathTemplate):
            path = self.dag.file(read.files)
            return ancient(path) if read.is_ancient else path
        files = self._input_function(step, read)
        if not callable(is_ancient := read.is_ancient):
            return ancient(files) if is_ancient else files

        def job_input_files(wildcards: Any) -> Any:
            paths = files(wildcards)
            return [ancient(path) for path in paths] if is_ancient(self.dag, dict(wildcards.items())) else paths

        return job_input_files

    def _input_function(self, step: Step, read: Input) -> Directive:
        if isinstance(read.files, str):
            method: Callable[[Step, Wildcards], Any] = getattr(self.behind, read.files)
            return lambda wildcards: method(step, dict(wildcards.items()))
        assert callable(read.files), f"{step.name}: Snakemake is to know the input {read.name}, which names no files"
        return self._function_of_wildcards(read.files)

    def _function_of_wildcards(self, of: JobFiles | JobValue) -> Directive:
        """Return a declared function as a function of the wildcards only: Snakemake compares no other parameters."""
        return lambda wildcards: of(self.dag, dict(wildcards.items()))

    def _output(self, output: Output) -> Any:
        path = self.dag.file(output.place)
        path = directory(path) if output.is_folder else path
        if (entry := output.report_entry) is None:
            return path
        return report(path, patterns=[*entry.patterns], category=entry.category, labels=dict(entry.labels))

    def _resources(self, step: Step) -> dict[str, Any]:
        resources = dict(self.resources_of(step.name)) | {
            name: self._function_of_wildcards(of) for name, of in step.resources.items()
        }
        if "operation" in step.options:
            resources["operation"] = self.dag.non_result_settings(step.name)
        if step.is_supervised:
            resources["supervisor"] = lambda wildcards: self.supervisor()
        return resources

    def _params(self, step: Step) -> dict[str, Any]:
        """Return what a job depends on besides its files; a changed value makes it run again, a changed name does not.

        Short lists of input files are derived from the input, so that Snakemake does not compare them.
        """
        params: dict[str, Any] = {"contract": self.dag.make_command_line_options(step.name)}

        def add_parameter(name: str, value: Any) -> None:
            assert name not in params, f"{step.name} has two parameters {name}"
            params[name] = value

        if step.content_hash:
            add_parameter("of", self._function_of_wildcards(step.content_hash))
        if step.reads_raw:
            add_parameter("raw", self._function_of_wildcards(RunFiles.raw_folder))
        if step.scratch:
            folder = step.scratch
            add_parameter(
                "scratch",
                self.dag.file(folder, job=step.job_name_template)
                if isinstance(folder, PathTemplate)
                else self._function_of_wildcards(folder),
            )
        for read in step.inputs:
            if read.is_short:
                add_parameter(read.name, _shorten_input(read.name))
            elif not read.is_tracked and read.files is not None:
                add_parameter(read.name, self._untracked_param(read))
        if step.instances.units is not None:
            add_parameter("units", self._function_of_wildcards(RunFiles.batch_listing_files))
            add_parameter("record", self.dag.record_path_template(step.name))
            for output in step.outputs:
                add_parameter(output.name, self.dag.file(output.place, unit="%unit"))
        if step.private:
            add_parameter("private", REMOVED.path_with_wildcards(self.dag.private, step=step.private, unit="%unit"))
        for name, of in step.parameters.items():
            add_parameter(name, self._function_of_wildcards(of))
        return params

    def _untracked_param(self, read: Input) -> Any:
        if isinstance(read.files, PathTemplate):
            return self.dag.file(read.files, unit="%unit")
        assert callable(read.files)
        files = read.files

        def shortened_files(wildcards: Any) -> list[str]:
            return compress_numbered_paths(files(self.dag, dict(wildcards.items())))

        return shortened_files


def _shorten_input(name: str) -> Callable[[Any, Any], list[str]]:
    return lambda wildcards, input: compress_numbered_paths(input.get(name))
