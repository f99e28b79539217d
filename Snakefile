"""Polder: sources → corpus → tokenizer → tokens → pretrain → evaluate → report → provenance (and plan, a leaf)."""

import shlex
import sys

from snakemake.utils import min_version

min_version("9.0")
sys.path.insert(0, workflow.basedir)
# What Slurm asks of a step must not end its shell, which would otherwise die of it first.
PREFIX = f"trap : TERM; export PATH={shlex.quote(sys.prefix)}/bin:$PATH; "
shell.prefix(PREFIX)

if not workflow.configfiles:

    configfile: "config/config.yaml"


container: "envs/polder.sif"


include: "rules/run.smk"
include: "rules/start.smk"
include: "rules/inputs.smk"
include: "rules/sources.smk"
include: "rules/corpus.smk"
include: "rules/opt_out.smk"
include: "rules/tokenizer.smk"
include: "rules/tokens.smk"
include: "rules/plan.smk"
include: "rules/pretrain.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"
include: "rules/provenance.smk"
include: "rules/platform.smk"
include: "rules/slurm.smk"


rule sources:
    input:
        expand(
            f"{RUN}/sources/{{source}}/manifest.json",
            source=[source.name for source in run.sources],
        ),
        records_until("sources"),
    message:
        "The sources are read"


rule corpus:
    input:
        expand(f"{RUN}/corpus/{{corpus}}/dataset.html", corpus=run.corpus),
        records_until("corpus"),
    message:
        "The corpora are made"


rule tokenizer:
    input:
        expand(f"{RUN}/tokenizer/{{tokenizer}}/fertility.json", tokenizer=run.tokenizer),
        records_until("tokenizer"),
    message:
        "The tokenizers are made"


rule tokens:
    input:
        expand(f"{RUN}/tokens/{{tokens}}/index.json", tokens=run.tokens),
        records_until("tokens"),
    message:
        "The token sets are made"


rule plan:
    input:
        f"{RUN}/plan/plan.json",
        record("plan.estimate"),
    message:
        "The plan is made"


rule pretrain:
    input:
        expand(f"{RUN}/models/{{model}}/final", model=run.models),
        [milestone for model in run.models for milestone in dag.milestones(model)],
        records_until("pretrain"),
    message:
        "The models are trained"


rule evaluate:
    input:
        [
            f"{RUN}/evaluation/{model}/{step}/results.json"
            for model, step in run.evaluated()
        ],
        [f"{RUN}/evaluation/{model}/samples.json" for model in run.searched_models()],
        records_until("evaluate"),
    message:
        "The models are evaluated"


rule report:
    input:
        f"{RUN}/report/index.html",
        record("report.page"),
        all_records,
    message:
        "The report is written"


rule provenance:
    input:
        f"{RUN}/ro-crate-metadata.json",
        rules.report.input,
    message:
        "The crate is written"


rule all:
    default_target: True
    input:
        rules.sources.input,
        rules.corpus.input,
        rules.tokenizer.input,
        rules.tokens.input,
        rules.plan.input,
        rules.pretrain.input,
        rules.evaluate.input,
        rules.report.input,
        rules.provenance.input,
    message:
        "The run is complete"
