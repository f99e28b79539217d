rule pretrain_segment:
    input:
        sources=SOURCES_READ,
        index=ancient(tokens_index),
        tokenizer=ancient(model_tokenizer("tokenizer.json")),
        configuration=ancient(model_tokenizer("tokenizer_config.json")),
        previous=previous_milestone,
    output:
        milestone=directory(f"{RUN}/models/{{model}}/milestones/{{step}}"),
        record=record("pretrain.segment"),
    log:
        log_file("pretrain.segment"),
    threads: 2
    resources:
        **resources_of("pretrain.segment"),
        recovery=dag.recovery,
        operation=dag.operation("pretrain.segment"),
        supervisor=lambda w: supervisor,
    params:
        contract=contract("pretrain.segment"),
        tokens=segment_tokens_hash,
        scratch=dag.scratch,
    message:
        "Train the model {wildcards.model} up to step {wildcards.step}"
    shell:
        "{resources.supervisor} -m pipeline pretrain segment {params.contract:q} --input index {input.index}"
        " --input tokenizer {input.tokenizer} --input configuration {input.configuration}"
        " --input previous {input.previous} --output milestone {output.milestone} --record {output.record}"
        " --scratch={params.scratch:q} --operation={resources.operation:q} --launch={resources.launch:q} --platform={resources.platform:q}"
        " --staging={resources.staging:q} --recovery={resources.recovery:q} 2> {log}"


rule pretrain_export:
    input:
        sources=SOURCES_READ,
        tokens=ancient(tokens_read),
        milestones=lambda w: dag.milestones(w.model),
    output:
        final=directory(f"{RUN}/models/{{model}}/final"),
        metrics=f"{RUN}/models/{{model}}/metrics.jsonl",
        tensorboard=directory(f"{RUN}/models/{{model}}/tensorboard"),
        record=record("pretrain.export"),
    log:
        log_file("pretrain.export"),
    resources:
        **resources_of("pretrain.export"),
    params:
        contract=contract("pretrain.export"),
    message:
        "Export the model {wildcards.model}"
    shell:
        "python -m pipeline pretrain export {params.contract:q} --input milestones {input.milestones}"
        " --output final {output.final} --output metrics {output.metrics} --output tensorboard {output.tensorboard}"
        " --record {output.record} 2> {log}"
