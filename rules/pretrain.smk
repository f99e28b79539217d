rule pretrain_adopt:
    input:
        sources=SOURCES_READ,
        index=ancient(adopted_index),
        tokenizer=ancient(model_tokenizer("tokenizer.json")),
        configuration=ancient(model_tokenizer("tokenizer_config.json")),
        model=adopted_model,
    output:
        milestone=directory(f"{RUN}/models/{{model}}/milestones/0"),
        record=record("pretrain.adopt"),
    log:
        log_file("pretrain.adopt"),
    resources:
        **resources_of("pretrain.adopt"),
    params:
        contract=contract("pretrain.adopt"),
        tokens=adopted_tokens_hash,
    message:
        "Take over the model that {wildcards.model} begins with"
    shell:
        "python -m pipeline pretrain adopt {params.contract:q} --input index {input.index}"
        " --input tokenizer {input.tokenizer} --input configuration {input.configuration}"
        " --input model {input.model:q} --output milestone {output.milestone} --record {output.record} 2> {log}"


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
    wildcard_constraints:
        step="[1-9][0-9]*",
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
