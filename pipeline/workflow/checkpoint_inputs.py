"""The inputs that are known behind a checkpoint of Snakemake alone, or not to be asked for at all.

What is before such a checkpoint decides by its content, not by its time, whether the steps after it run again.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.errors import InputError
from pipeline.layout import LISTING, MANIFEST, SOURCE_UNITS, SOURCES_COMPLETE
from pipeline.workflow.dag import Dag
from pipeline.workflow.run_files import Wildcards
from pipeline.workflow.snakemake_internals import WorkflowError
from pipeline.workflow.stale_records import Stale
from pipeline.workflow.startup import Startup
from pipeline.workflow.steps.declaration import Step
from pipeline.workflow.steps.pretrain import milestone_before


class CheckpointInputs:
    """Input functions of the wildcards of a job of a step.

    Args:
        checkpoints: Snakemake's object of that name.
    """

    def __init__(self, dag: Dag, stale: Stale, checkpoints: Any, startup: Startup) -> None:
        self.dag = dag
        self.stale = stale
        self.checkpoints = checkpoints
        self.startup = startup

    def all_sources(self) -> list[str]:
        """Return what the checkpoint `sources_complete` waits for."""
        names = [source.name for source in self.dag.config.sources]
        return [self.dag.file(place, source=name) for place in (MANIFEST, SOURCE_UNITS, LISTING) for name in names]

    def sources_file(self) -> str:
        """Return what it writes."""
        return self.dag.file(SOURCES_COMPLETE)

    def sources_complete(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the file that says that all sources are read, to a batch that reads their units."""
        output = self.checkpoints.sources_complete.get().output
        path = self.dag.batch_of(step.name, *(wildcards[name] for name in step.per.wildcards))
        self.startup.make_again(self.stale.of_other_files(path, self.dag.batch_hash(wildcards)), "read other raw files")
        return output

    def adopted_index(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the index of the tokens of a model that begins with another one."""
        tokens = self.dag.config.models[wildcards["model"]].tokens
        return self.checkpoints.tokens_index.get(tokens=tokens).output.index

    def tokens_index(self, step: Step, wildcards: Wildcards) -> Any:
        """Return the index of the tokens that a segment is trained on."""
        model, last = wildcards["model"], wildcards["step"]
        index = self.adopted_index(step, wildcards)
        if sentence := self.dag.finished.of_other_tokens(model, int(last)):
            self.startup.say_once(sentence)
        self.startup.make_again(self.stale.of_other_tokens(model, last), "read other tokens")
        return index

    def previous_milestone(self, step: Step, wildcards: Wildcards) -> list[str]:
        """Return the milestone that a segment starts from; refuse to throw finished training away."""
        if thrown_away := self.dag.finished.refusal(wildcards["model"]):
            try:
                self.startup.refuse_once(thrown_away)
            except InputError as error:
                raise WorkflowError(str(error)) from None
        return milestone_before(self.dag, wildcards)
