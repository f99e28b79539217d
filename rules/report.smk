# What reads a manifest waits for the checkpoint too: before it, nobody knows which units run again.


rule report_page:
    input:
        sources=rules.sources_complete.output,
        records=all_records,
        statistics=expand(f"{RUN}/corpus/{{corpus}}/statistics.json", corpus=run.corpus),
        fertility=expand(
            f"{RUN}/tokenizer/{{tokenizer}}/fertility.json", tokenizer=run.tokenizer
        ),
        indexes=expand(f"{RUN}/tokens/{{tokens}}/index.json", tokens=run.tokens),
        metrics=expand(f"{RUN}/models/{{model}}/metrics.jsonl", model=run.models),
        evaluation=[
            f"{RUN}/evaluation/{model}/{step}/results.json"
            for model, step in run.evaluated()
        ],
        answers=[
            f"{RUN}/evaluation/{model}/{step}/items.parquet"
            for model, step in run.evaluated()
        ],
        samples=[
            f"{RUN}/evaluation/{model}/samples.json" for model in run.searched_models()
        ],
        differences=[f"{RUN}/evaluation/differences.json"] * bool(run.evaluated()),
        plan=f"{RUN}/plan/plan.json",
        manifests=expand(
            f"{RUN}/sources/{{source}}/manifest.json",
            source=[source.name for source in run.sources],
        ),
        data_sets=expand(f"{RUN}/corpus/{{corpus}}/dataset.json", corpus=run.corpus),
        later_suites=dag.later_suites(),
        forgotten=dag.forgotten(),
        remains=dag.remains(),
        carbon_intensity=dag.carbon_intensity(),
    output:
        **(
            {
                "experiments": report(
                    directory(f"{RUN}/report/experiments"),
                    patterns=["{experiment}.html"],
                    category="Report",
                    labels={"document": "experiment {experiment}"},
                )
            }
            if run.experiments
            else {}
        ),
        page=report(
            f"{RUN}/report/index.html",
            category="Report",
            labels={"document": "the auditor's page"},
        ),
        model_card=report(
            f"{RUN}/report/model-card.md",
            category="Report",
            labels={"document": "the model card"},
        ),
        papers=report(
            directory(f"{RUN}/report/papers"),
            patterns=["{document}.html"],
            category="Report",
            labels={"document": "{document}"},
        ),
        energy=f"{RUN}/report/energy.json",
        figures=f"{RUN}/report/figures.json",
        record=record("report.page"),
    log:
        log_file("report.page"),
    resources:
        **resources_of("report.page"),
    params:
        contract=contract("report.page"),
        records=run_records,
        run=lambda w: RUN,
        experiments=lambda w, output: (
            ["--output", "experiments", output.experiments] if run.experiments else []
        ),
    message:
        "Write the report"
    shell:
        # What the cluster's meters know of the jobs so far. A meter that does not answer is told in the report and stops
        # nothing; a configuration of meters that has no sense does.
        "python -m pipeline accounting {params.run} > {log} 2>&1 && "
        "python -m pipeline report page {params.contract:q} --input records {params.records:q}"
        " --input statistics {input.statistics} --input fertility {input.fertility} --input indexes {input.indexes}"
        " --input metrics {input.metrics} --input evaluation {input.evaluation}"
        " --input answers {input.answers} --input samples {input.samples} --input differences {input.differences:q} --input plan {input.plan}"
        " --input manifests {input.manifests} --input data_sets {input.data_sets} --input later_suites {input.later_suites:q} --input forgotten {input.forgotten:q}"
        " --input remains {input.remains:q} --input carbon_intensity {input.carbon_intensity:q}"
        " --output page {output.page} --output model_card {output.model_card}"
        " --output papers {output.papers} {params.experiments:q}"
        " --output energy {output.energy} --output figures {output.figures} --record {output.record} 2>> {log}"
