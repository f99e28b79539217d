rule corpus_filter:
    input:
        manifest=ancient(source_manifest),
        files=ancient(dag.unit_inputs),
        model=ancient(dag.language_model),
        harmful=ancient(lambda w: run.harmful_files(w.corpus)),
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
        private=f"{PRIVATE}/corpus/{{corpus}}/removed/filter.{{source}}.{{unit}}.parquet",
    message:
        "Filter {wildcards.source}, unit {wildcards.unit}, for the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus filter {params.contract:q} --input manifest {input.manifest}"
        " --input files {params.files:q} --input model {input.model:q} --input harmful {input.harmful:q}"
        " --output documents {output.documents} --output removed {output.removed}"
        " --private {params.private:q}"
        " --record {output.record} 2> {log}"


rule corpus_signatures:
    input:
        documents=f"{RUN}/corpus/{{corpus}}/filtered/{{source}}.{{unit}}.parquet",
    output:
        signatures=f"{RUN}/corpus/{{corpus}}/signatures/{{source}}.{{unit}}.parquet",
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
        signatures=lambda w: dag.corpus_files("signatures/", w.corpus),
    output:
        duplicates=directory(f"{RUN}/corpus/{{corpus}}/duplicates"),
        record=record("corpus.deduplicate", "corpus"),
    log:
        log_file("corpus.deduplicate", "corpus"),
    params:
        contract=contract("corpus.deduplicate"),
        signatures=short("signatures"),
    message:
        "Find duplicates in the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus deduplicate {params.contract:q}"
        " --input signatures {params.signatures:q} --output duplicates {output.duplicates}"
        " --record {output.record} 2> {log}"


rule corpus_drop_duplicates:
    input:
        documents=f"{RUN}/corpus/{{corpus}}/filtered/{{source}}.{{unit}}.parquet",
        duplicates=f"{RUN}/corpus/{{corpus}}/duplicates",
    output:
        deduplicated=f"{RUN}/corpus/{{corpus}}/deduplicated/{{source}}.{{unit}}.parquet",
        removed=f"{RUN}/corpus/{{corpus}}/removed/deduplicate.{{source}}.{{unit}}.parquet",
        record=record("corpus.drop_duplicates", "corpus", "source", "unit"),
    log:
        log_file("corpus.drop_duplicates", "corpus", "source", "unit"),
    params:
        contract=contract("corpus.drop_duplicates"),
        private=f"{PRIVATE}/corpus/{{corpus}}/removed/deduplicate.{{source}}.{{unit}}.parquet",
    message:
        "Drop the duplicates of {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline corpus drop_duplicates {params.contract:q} --input documents {input.documents}"
        " --input duplicates {input.duplicates}/{wildcards.source}.{wildcards.unit}.parquet"
        " --output deduplicated {output.deduplicated} --output removed {output.removed}"
        " --private {params.private:q}"
        " --record {output.record} 2> {log}"


rule corpus_ngrams:
    input:
        files=dag.items,
    output:
        ngrams=f"{RUN}/corpus/{{corpus}}/ngrams.parquet",
        record=record("corpus.ngrams", "corpus"),
    log:
        log_file("corpus.ngrams", "corpus"),
    params:
        contract=contract("corpus.ngrams"),
    message:
        "Hash the n-grams of the evaluation items for the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus ngrams {params.contract:q} --input files {input.files:q}"
        " --output ngrams {output.ngrams} --record {output.record} 2> {log}"


rule corpus_decontaminate:
    input:
        documents=f"{RUN}/corpus/{{corpus}}/deduplicated/{{source}}.{{unit}}.parquet",
        ngrams=f"{RUN}/corpus/{{corpus}}/ngrams.parquet",
    output:
        final=f"{RUN}/corpus/{{corpus}}/final/{{source}}.{{unit}}.parquet",
        removed=f"{RUN}/corpus/{{corpus}}/removed/decontaminate.{{source}}.{{unit}}.parquet",
        hits=f"{RUN}/corpus/{{corpus}}/contaminated/{{source}}.{{unit}}.parquet",
        record=record("corpus.decontaminate", "corpus", "source", "unit"),
    log:
        log_file("corpus.decontaminate", "corpus", "source", "unit"),
    params:
        contract=contract("corpus.decontaminate"),
    message:
        "Drop what contains evaluation items from {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline corpus decontaminate {params.contract:q} --input documents {input.documents}"
        " --input ngrams {input.ngrams} --output final {output.final} --output removed {output.removed}"
        " --output hits {output.hits} --record {output.record} 2> {log}"


rule corpus_statistics:
    input:
        filtered=lambda w: dag.corpus_files("filtered/", w.corpus),
        deduplicated=lambda w: dag.corpus_files("deduplicated/", w.corpus),
        removed=lambda w: dag.corpus_files("removed/filter.", w.corpus)
        + dag.corpus_files("removed/deduplicate.", w.corpus)
        + dag.corpus_files("removed/decontaminate.", w.corpus),
        hits=lambda w: dag.corpus_files("contaminated/", w.corpus),
        final=lambda w: dag.corpus_files("final/", w.corpus),
    output:
        statistics=f"{RUN}/corpus/{{corpus}}/statistics.json",
        record=record("corpus.statistics", "corpus"),
    log:
        log_file("corpus.statistics", "corpus"),
    params:
        contract=contract("corpus.statistics"),
        filtered=short("filtered"),
        deduplicated=short("deduplicated"),
        removed=short("removed"),
        hits=short("hits"),
        final=short("final"),
    message:
        "Count the corpus {wildcards.corpus}: in = kept + removed"
    shell:
        "python -m pipeline corpus statistics {params.contract:q} --input filtered {params.filtered:q}"
        " --input deduplicated {params.deduplicated:q} --input removed {params.removed:q} --input hits {params.hits:q}"
        " --input final {params.final:q} --output statistics {output.statistics}"
        " --record {output.record} 2> {log}"


rule corpus_publish:
    input:
        statistics=f"{RUN}/corpus/{{corpus}}/statistics.json",
        removed=lambda w: dag.corpus_files("removed/filter.", w.corpus)
        + dag.corpus_files("removed/deduplicate.", w.corpus)
        + dag.corpus_files("removed/decontaminate.", w.corpus),
        final=lambda w: dag.corpus_files("final/", w.corpus),
    output:
        card=f"{RUN}/corpus/{{corpus}}/README.md",
        croissant=f"{RUN}/corpus/{{corpus}}/croissant.json",
        dataset=f"{RUN}/corpus/{{corpus}}/dataset.json",
        page=f"{RUN}/corpus/{{corpus}}/dataset.html",
        record=record("corpus.publish", "corpus"),
    log:
        log_file("corpus.publish", "corpus"),
    params:
        contract=contract("corpus.publish"),
        removed=short("removed"),
        final=short("final"),
    message:
        "Describe the corpus {wildcards.corpus} as a data set"
    shell:
        "python -m pipeline corpus publish {params.contract:q} --input statistics {input.statistics}"
        " --input removed {params.removed:q} --input final {params.final:q} --output card {output.card}"
        " --output croissant {output.croissant} --output dataset {output.dataset} --output page {output.page}"
        " --record {output.record} 2> {log}"
