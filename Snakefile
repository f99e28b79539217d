"""Polder: sources → corpus → tokenizer → tokens → pretrain → evaluate → report → provenance (and plan, a leaf)."""

import shlex
import sys

from snakemake.utils import min_version

min_version("9.0")
sys.path.insert(0, workflow.basedir)
from pipeline.energy.startup_counters import keep_startup_sample

keep_startup_sample()  # the meter of this process, which is found later, begins with it
# What Slurm asks of a step must not end its shell, which would otherwise die of it first.
PREFIX = f"trap : TERM; export PATH={shlex.quote(sys.prefix)}/bin:$PATH; "
shell.prefix(PREFIX)

if not workflow.configfiles:

    configfile: "config/config.yaml"


container: "envs/polder.sif"


include: "rules/startup.smk"
include: "rules/steps.smk"
include: "rules/platform.smk"
include: "rules/slurm.smk"


# A stage's target is a stage's name. What each asks for is `Dag.target_files`.
for stage in STAGES:

    rule:
        name:
            stage
        input:
            dag.target_files(stage),
        message:
            STAGE_DONE[stage]


rule all:
    default_target: True
    input:
        [dag.target_files(stage) for stage in STAGES],
    message:
        "The run is complete"
