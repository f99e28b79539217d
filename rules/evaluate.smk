rule evaluate_baselines:
    input:
        sources=SOURCES_READ,
        model=dag.baseline,
        tasks=task_files,
    output:
        results=f"{RUN}/baselines/{{baseline}}/results.json",
        answers=f"{RUN}/baselines/{{baseline}}/items.parquet",
        record=record("evaluate.baselines"),
    log:
        log_file("evaluate.baselines"),
    threads: 8  # of PyTorch, on a CPU
    resources:
        **resources_of("evaluate.baselines"),
    params:
        contract=contract("evaluate.baselines"),
        scratch=dag.step_scratch("evaluate.baselines"),
    message:
        "Ask the baseline {wildcards.baseline} what the models are asked"
    shell:
        "python -m pipeline evaluate baselines {params.contract:q} --platform={resources.platform:q}"
        " --scratch={params.scratch:q}"
        " --input model {input.model:q} --input tasks {input.tasks:q}"
        " --output results {output.results} --output answers {output.answers} --record {output.record} 2> {log}"


rule evaluate_differences:
    input:
        sources=SOURCES_READ,
        answers=[
            f"{RUN}/evaluation/{model}/{step}/items.parquet"
            for model, step in run.evaluated()
            if model in run.compared_models()
        ],
    output:
        differences=f"{RUN}/evaluation/differences.json",
        record=record("evaluate.differences"),
    log:
        log_file("evaluate.differences"),
    resources:
        **resources_of("evaluate.differences"),
    params:
        contract=contract("evaluate.differences"),
    message:
        "Compare the checkpoints on the items that they answered"
    shell:
        "python -m pipeline evaluate differences {params.contract:q} --input answers {input.answers}"
        " --output differences {output.differences} --record {output.record} 2> {log}"


rule evaluate_samples:
    input:
        sources=SOURCES_READ,
        index=ancient(tokens_read),
        tokenizer=ancient(model_tokenizer("tokenizer.json")),
        suffixes=ancient(suffixes_of_model),
        final=f"{RUN}/models/{{model}}/final",
        harmful=ancient(lambda w: run.harmful_files_of_model(w.model)),
    output:
        samples=f"{RUN}/evaluation/{{model}}/samples.json",
        record=record("evaluate.samples"),
    log:
        log_file("evaluate.samples"),
    threads: 2  # of PyTorch, on a CPU
    resources:
        **resources_of("evaluate.samples"),
    params:
        contract=contract("evaluate.samples"),
        suffixes=short("suffixes"),
    message:
        "Let the model {wildcards.model} write, and look for it in the training documents"
    shell:
        "python -m pipeline evaluate samples {params.contract:q} --input index {input.index}"
        " --input tokenizer {input.tokenizer} --input suffixes {params.suffixes:q} --input final {input.final}"
        " --input harmful {input.harmful:q} --output samples {output.samples} --record {output.record} 2> {log}"


rule evaluate_suites:
    input:
        sources=SOURCES_READ,
        tokens=ancient(tokens_read),
        milestone=f"{RUN}/models/{{model}}/milestones/{{step}}",
        tasks=task_files,
        baselines=dag.baselines,
    output:
        results=f"{RUN}/evaluation/{{model}}/{{step}}/results.json",
        answers=f"{RUN}/evaluation/{{model}}/{{step}}/items.parquet",
        record=record("evaluate.suites"),
    log:
        log_file("evaluate.suites"),
    threads: 8  # of PyTorch, on a CPU
    resources:
        **resources_of("evaluate.suites"),
    params:
        contract=contract("evaluate.suites"),
        scratch=dag.step_scratch("evaluate.suites"),
    message:
        "Evaluate the model {wildcards.model} at step {wildcards.step}"
    shell:
        "python -m pipeline evaluate suites {params.contract:q} --launch={resources.launch:q}"
        " --platform={resources.platform:q} --scratch={params.scratch:q}"
        " --input milestone {input.milestone} --input tasks {input.tasks:q} --input index {input.tokens}"
        " --input baselines {input.baselines}"
        " --output results {output.results} --output answers {output.answers} --record {output.record} 2> {log}"
