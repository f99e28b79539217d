rule tokenizer_train:
    input:
        sources=SOURCES_READ,
        batches=tokenizer_batches,
        # Nothing is made of a corpus that lost documents, or more files than it may.
        counted=ancient(
            lambda w: f"{RUN}/corpus/{run.tokenizer[w.tokenizer].corpus}/statistics.json"
        ),
    output:
        tokenizer=f"{RUN}/tokenizer/{{tokenizer}}/tokenizer.json",
        configuration=f"{RUN}/tokenizer/{{tokenizer}}/tokenizer_config.json",
        record=record("tokenizer.train"),
    log:
        log_file("tokenizer.train"),
    threads: 8  # of the library; on a smaller machine as many as it has
    resources:
        **resources_of("tokenizer.train"),
    params:
        contract=contract("tokenizer.train"),
        documents=tokenizer_documents,
    message:
        "Train the tokenizer {wildcards.tokenizer}"
    shell:
        "python -m pipeline tokenizer train {params.contract:q} --input documents {params.documents:q}"
        " --output tokenizer {output.tokenizer} --output configuration {output.configuration}"
        " --record {output.record} 2> {log}"


rule tokenizer_fertility:
    input:
        sources=SOURCES_READ,
        tokenizer=f"{RUN}/tokenizer/{{tokenizer}}/tokenizer.json",
        # It stands for the documents that the tokenizer was trained on.
        trained=record("tokenizer.train"),
        parallel=parallel_files,
    output:
        fertility=f"{RUN}/tokenizer/{{tokenizer}}/fertility.json",
        record=record("tokenizer.fertility"),
    log:
        log_file("tokenizer.fertility"),
    resources:
        **resources_of("tokenizer.fertility"),
    params:
        contract=contract("tokenizer.fertility"),
        documents=tokenizer_documents,
    message:
        "Measure the fertility of the tokenizer {wildcards.tokenizer} on held-out text"
    shell:
        "python -m pipeline tokenizer fertility {params.contract:q} --input tokenizer {input.tokenizer}"
        " --input documents {params.documents:q} --input parallel {input.parallel:q}"
        " --output fertility {output.fertility} --record {output.record} 2> {log}"
