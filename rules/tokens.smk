rule tokens_shard:
    input:
        sources=SOURCES_READ,
        tokenizer=lambda w: f"{RUN}/tokenizer/{run.tokens[w.tokens].tokenizer}/tokenizer.json",
        batches=tokens_batches,
        counted=ancient(
            lambda w: f"{RUN}/corpus/{run.tokens[w.tokens].corpus}/statistics.json"
        ),
    output:
        train=f"{RUN}/tokens/{{tokens}}/train/{{shard}}.arrow",
        validation=f"{RUN}/tokens/{{tokens}}/validation/{{shard}}.arrow",
        record=record("tokens.shard"),
    log:
        log_file("tokens.shard"),
    threads: 8  # of the library
    resources:
        **resources_of("tokens.shard"),
    params:
        contract=contract("tokens.shard"),
        documents=lambda w: shorten(
            dag.corpus_files("final/", run.tokens[w.tokens].corpus)
        ),
    message:
        "Tokenize shard {wildcards.shard} of the token set {wildcards.tokens}"
    shell:
        "python -m pipeline tokens shard {params.contract:q} --input tokenizer {input.tokenizer}"
        " --input documents {params.documents:q} --output train {output.train} --output validation {output.validation}"
        " --record {output.record} 2> {log}"


rule tokens_suffixes:
    input:
        sources=SOURCES_READ,
        train=f"{RUN}/tokens/{{tokens}}/train/{{shard}}.arrow",
        tokenizer=lambda w: f"{RUN}/tokenizer/{run.tokens[w.tokens].tokenizer}/tokenizer.json",
    output:
        suffixes=f"{RUN}/tokens/{{tokens}}/suffixes/{{shard}}.arrow",
        record=record("tokens.suffixes"),
    log:
        log_file("tokens.suffixes"),
    resources:
        **resources_of("tokens.suffixes"),
    params:
        contract=contract("tokens.suffixes"),
    message:
        "Sort the suffixes of shard {wildcards.shard} of the token set {wildcards.tokens}"
    shell:
        "python -m pipeline tokens suffixes {params.contract:q} --input train {input.train}"
        " --input tokenizer {input.tokenizer} --output suffixes {output.suffixes} --record {output.record} 2> {log}"


checkpoint tokens_index:
    input:
        sources=SOURCES_READ,
        train=lambda w: [
            f"{RUN}/tokens/{w.tokens}/train/{n}.arrow"
            for n in range(run.tokens[w.tokens].shards)
        ],
        validation=lambda w: [
            f"{RUN}/tokens/{w.tokens}/validation/{n}.arrow"
            for n in range(run.tokens[w.tokens].shards)
        ],
        # Not read: behind this checkpoint nothing of the tokens is made any more, so that equal bytes stop what follows.
        suffixes=lambda w: [
            f"{RUN}/tokens/{w.tokens}/suffixes/{n}.arrow"
            for n in range(run.tokens[w.tokens].shards)
            if run.tokens[w.tokens].suffixes
        ],
    output:
        index=f"{RUN}/tokens/{{tokens}}/index.json",
        record=record("tokens.index"),
    log:
        log_file("tokens.index"),
    resources:
        **resources_of("tokens.index"),
        operation=dag.operation("tokens.index"),
    params:
        contract=contract("tokens.index"),
        train=short("train"),
        validation=short("validation"),
    message:
        "Index the token set {wildcards.tokens}"
    shell:
        "python -m pipeline tokens index {params.contract:q} --operation={resources.operation:q}"
        " --input train {params.train:q}"
        " --input validation {params.validation:q} --output index {output.index} --record {output.record} 2> {log}"
