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
        plan=f"{RUN}/plan/plan.json",
        manifests=expand(
            f"{RUN}/sources/{{source}}/manifest.json",
            source=[source.name for source in run.sources],
        ),
        forgotten=dag.forgotten(),
        remains=dag.remains(),
    output:
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
        training_content_summary=report(
            f"{RUN}/report/training-content-summary.md",
            category="Report",
            labels={"document": "the summary of training content"},
        ),
        record=record("report.page"),
    log:
        log_file("report.page"),
    resources:
        **resources_of("report.page"),
    params:
        contract=contract("report.page"),
        records=run_records,
        run=lambda w: RUN,
    message:
        "Write the report"
    shell:
        # What Slurm knows of the jobs so far, for the report; without it the report is written all the same.
        "python -m pipeline accounting {params.run} > {log} 2>&1 || true; "
        "python -m pipeline report page {params.contract:q} --input records {params.records:q}"
        " --input statistics {input.statistics} --input fertility {input.fertility} --input indexes {input.indexes}"
        " --input metrics {input.metrics} --input evaluation {input.evaluation} --input plan {input.plan}"
        " --input manifests {input.manifests} --input forgotten {input.forgotten:q}"
        " --input remains {input.remains:q} --output page {output.page} --output model_card {output.model_card}"
        " --output training_content_summary {output.training_content_summary} --record {output.record} 2>> {log}"
