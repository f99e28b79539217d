rule evaluate_suites:
    input:
        sources=SOURCES_READ,
        tokens=ancient(tokens_read),
        milestone=f"{RUN}/models/{{model}}/milestones/{{step}}",
        tasks=task_files,
    output:
        results=f"{RUN}/evaluation/{{model}}/{{step}}/results.json",
        record=record("evaluate.suites"),
    log:
        log_file("evaluate.suites"),
    threads: 8  # of PyTorch, on a CPU
    resources:
        **resources_of("evaluate.suites"),
    params:
        contract=contract("evaluate.suites"),
    message:
        "Evaluate the model {wildcards.model} at step {wildcards.step}"
    shell:
        "python -m pipeline evaluate suites {params.contract:q} --platform={resources.platform:q}"
        " --input milestone {input.milestone}"
        " --input tasks {input.tasks:q} --output results {output.results} --record {output.record} 2> {log}"
