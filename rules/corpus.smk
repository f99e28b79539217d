rule corpus_filter:
    input:
        manifest=ancient(source_manifest),
        files=ancient(dag.unit_inputs),
    output:
        documents=f"{RUN}/corpus/{{corpus}}/filtered/{{source}}.{{unit}}.parquet",
        removed=f"{RUN}/corpus/{{corpus}}/removed/filter.{{source}}.{{unit}}.parquet",
        record=record("corpus.filter", "corpus", "source", "unit"),
    log:
        log_file("corpus.filter", "corpus", "source", "unit"),
    params:
        contract=contract("corpus.filter"),
        files=dag.unit_files,
        unit=unit_hash,
    message:
        "Filter {wildcards.source}, unit {wildcards.unit}, for the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus filter {params.contract:q} --input manifest {input.manifest}"
        " --input files {params.files:q} --output documents {output.documents} --output removed {output.removed}"
        " --record {output.record} 2> {log}"


rule corpus_signatures:
    input:
        documents=f"{RUN}/corpus/{{corpus}}/filtered/{{source}}.{{unit}}.parquet",
    output:
        signatures=directory(f"{RUN}/corpus/{{corpus}}/signatures/{{source}}.{{unit}}"),
        record=record("corpus.signatures", "corpus", "source", "unit"),
    log:
        log_file("corpus.signatures", "corpus", "source", "unit"),
    params:
        contract=contract("corpus.signatures"),
    message:
        "Compute MinHash signatures of {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline corpus signatures {params.contract:q} --input documents {input.documents}"
        " --output signatures {output.signatures} --record {output.record} 2> {log}"


rule corpus_deduplicate:
    input:
        documents=lambda w: dag.corpus_files("filtered/", w.corpus),
        signatures=lambda w: dag.corpus_files("signatures/", w.corpus, suffix=""),
    output:
        duplicates=f"{RUN}/corpus/{{corpus}}/deduplicated/duplicates.parquet",
        record=record("corpus.deduplicate", "corpus"),
    log:
        log_file("corpus.deduplicate", "corpus"),
    params:
        contract=contract("corpus.deduplicate"),
    message:
        "Find duplicates in the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus deduplicate {params.contract:q} --input documents {input.documents}"
        " --input signatures {input.signatures} --output duplicates {output.duplicates}"
        " --record {output.record} 2> {log}"


rule corpus_finalise:
    input:
        documents=f"{RUN}/corpus/{{corpus}}/filtered/{{source}}.{{unit}}.parquet",
        duplicates=f"{RUN}/corpus/{{corpus}}/deduplicated/duplicates.parquet",
    output:
        final=f"{RUN}/corpus/{{corpus}}/final/{{source}}.{{unit}}.parquet",
        removed=f"{RUN}/corpus/{{corpus}}/removed/deduplicate.{{source}}.{{unit}}.parquet",
        record=record("corpus.finalise", "corpus", "source", "unit"),
    log:
        log_file("corpus.finalise", "corpus", "source", "unit"),
    params:
        contract=contract("corpus.finalise"),
    message:
        "Drop the duplicates of {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline corpus finalise {params.contract:q} --input documents {input.documents}"
        " --input duplicates {input.duplicates} --output final {output.final} --output removed {output.removed}"
        " --record {output.record} 2> {log}"


rule corpus_statistics:
    input:
        filtered=lambda w: dag.corpus_files("filtered/", w.corpus),
        removed=lambda w: dag.corpus_files("removed/filter.", w.corpus)
        + dag.corpus_files("removed/deduplicate.", w.corpus),
        final=lambda w: dag.corpus_files("final/", w.corpus),
    output:
        statistics=f"{RUN}/corpus/{{corpus}}/statistics.json",
        record=record("corpus.statistics", "corpus"),
    log:
        log_file("corpus.statistics", "corpus"),
    params:
        contract=contract("corpus.statistics"),
    message:
        "Count the corpus {wildcards.corpus}: in = kept + removed"
    shell:
        "python -m pipeline corpus statistics {params.contract:q} --input filtered {input.filtered}"
        " --input removed {input.removed} --input final {input.final} --output statistics {output.statistics}"
        " --record {output.record} 2> {log}"
