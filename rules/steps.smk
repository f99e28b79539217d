"""The rules of the steps, each made from its declaration in pipeline/workflow/steps."""

from pipeline.slurm.resources import StepResources
from pipeline.workflow.rule_factory import CheckpointInputs, RuleFactory
from pipeline.workflow.steps import STAGE_DONE, STAGES, STEPS


wildcard_constraints:
    source="[a-z0-9_-]+",
    corpus="[a-z0-9_-]+",
    interleaved="[a-z0-9_-]+",
    tokenizer="[a-z0-9_-]+",
    tokens="[a-z0-9_-]+",
    model="[a-z0-9_-]+",
    baseline="[a-z0-9_-]+",
    batch="[0-9]+",
    share="[0-9]+",
    file="[0-9]+",
    shard="[0-9]+",
    step="[0-9]+",


requests = StepResources(run, dag)
behind = CheckpointInputs(dag, stale, checkpoints, startup)
factory = RuleFactory(dag, requests, requests.count_units, behind, lambda: supervisor)
# Functions, because Snakemake reads a command when its job runs, and the variable of a loop then has its last value.
# snakefmt does not know rules in functions.
# fmt: off
def declare(made):
    rule:
        name: made.name
        input: **made.inputs
        output: **made.outputs
        log: made.log
        threads: made.threads
        resources: **made.resources
        params: **made.params
        wildcard_constraints: **made.constraints
        message: made.message
        localrule: made.is_local
        shell: made.shell


def declare_checkpoint(made):
    checkpoint:
        name: made.name
        input: **made.inputs
        output: **made.outputs
        log: made.log
        threads: made.threads
        resources: **made.resources
        params: **made.params
        wildcard_constraints: **made.constraints
        message: made.message
        localrule: made.is_local
        shell: made.shell
# fmt: on
for step in STEPS.values():
    (declare_checkpoint if step.is_checkpoint else declare)(factory.make_rule(step))


# One for all sources, because Snakemake plans the whole run again after each. It only says that all of them are read.
checkpoint sources_complete:
    input:
        behind.sources_complete_checkpoint_inputs(),
    output:
        touch(behind.sources_complete_file()),
    message:
        "All sources are read"
