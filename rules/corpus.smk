rule corpus_filter:
    input:
        # The units' own files are known to the checkpoint, and thousands of them slow Snakemake down.
        sources=ancient(sources_complete("corpus.filter")),
        model=ancient(dag.language_model),
        harmful=ancient(lambda w: run.harmful_files(w.corpus)),
        twin=ancient(dag.first_twin("corpus.filter")),
    output:
        batch=batch("corpus.filter"),
    log:
        log_file("corpus.filter"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.filter"),
    params:
        contract=contract("corpus.filter"),
        of=batch_hash,
        raw=dag.raw_folder,
        source=f"{RUN}/sources/{{source}}",
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        removed=unit_file("removed/filter."),
        private=unit_file("removed/filter.", PRIVATE),
        record=record("corpus.filter"),
    message:
        "Filter {wildcards.source}, batch {wildcards.batch}, for the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus filter {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --of={params.of} --raw={params.raw:q}"
        " --input unit {params.source}/units/%unit.json --input files @{params.source}/listing/%unit.json"
        " --input model {input.model:q} --input harmful {input.harmful:q}"
        " --output documents {params.documents} --output removed {params.removed}"
        " --private={params.private:q} --record {params.record} 2> {log}"


rule corpus_signatures:
    input:
        sources=SOURCES_READ,
        batch=batch("corpus.filter"),
        twin=ancient(dag.first_twin("corpus.signatures")),
    output:
        batch=batch("corpus.signatures"),
    log:
        log_file("corpus.signatures"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.signatures"),
    params:
        contract=contract("corpus.signatures"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        signatures=unit_file("signatures/"),
        record=record("corpus.signatures"),
    message:
        "Compute MinHash signatures of {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline corpus signatures {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --input documents {params.documents} --output signatures {params.signatures}"
        " --record {params.record} 2> {log}"


rule corpus_quality:
    input:
        files=ancient(dag.seed_files),
    output:
        model=f"{RUN}/corpus/{{corpus}}/quality.safetensors",
        evaluation=f"{RUN}/corpus/{{corpus}}/quality.json",
        record=record("corpus.quality"),
    log:
        log_file("corpus.quality"),
    resources:
        **resources_of("corpus.quality"),
    params:
        contract=contract("corpus.quality"),
    message:
        "Train the classifiers of quality of the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus quality {params.contract:q} --input files {input.files:q}"
        " --output model {output.model} --output evaluation {output.evaluation}"
        " --record {output.record} 2> {log}"


rule corpus_scores:
    input:
        sources=SOURCES_READ,
        batch=batch("corpus.filter"),
        model=f"{RUN}/corpus/{{corpus}}/quality.safetensors",
    output:
        batch=batch("corpus.scores"),
    log:
        log_file("corpus.scores"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.scores"),
    params:
        contract=contract("corpus.scores"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        scores=unit_file("scores/"),
        record=record("corpus.scores"),
    message:
        "Score {wildcards.source}, batch {wildcards.batch}, of the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus scores {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --input documents {params.documents} --input model {input.model}"
        " --output scores {params.scores} --record {params.record} 2> {log}"


rule corpus_perplexity:
    input:
        sources=SOURCES_READ,
        index=ancient(dag.tokens_of_reading_model),
        batch=batch("corpus.filter"),
        final=dag.reading_model,
    output:
        batch=batch("corpus.perplexity"),
    log:
        log_file("corpus.perplexity"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.perplexity"),
    params:
        contract=contract("corpus.perplexity"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        perplexity=unit_file("perplexity/"),
        record=record("corpus.perplexity"),
    message:
        "Read {wildcards.source}, batch {wildcards.batch}, of the corpus {wildcards.corpus} with a model"
    shell:
        "python -m pipeline corpus perplexity {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --input documents {params.documents} --input final {input.final}"
        " --output perplexity {params.perplexity} --record {params.record} 2> {log}"


rule corpus_equal_keys:
    input:
        sources=SOURCES_READ,
        batches=lambda w: dag.corpus_batches("corpus.signatures", w.corpus),
        reserved=reserved_batches,
    output:
        pairs=f"{RUN}/corpus/{{corpus}}/equal_keys/{{share}}.parquet",
        record=record("corpus.equal_keys"),
    log:
        log_file("corpus.equal_keys"),
    resources:
        **resources_of("corpus.equal_keys"),
    params:
        contract=contract("corpus.equal_keys"),
        signatures=units_of("signatures/"),
        reserved=reserved_units,
    message:
        "Find equal keys in the corpus {wildcards.corpus}, share {wildcards.share}"
    shell:
        "python -m pipeline corpus equal_keys {params.contract:q}"
        " --input signatures {params.signatures:q} --input reserved {params.reserved:q}"
        " --output pairs {output.pairs} --record {output.record} 2> {log}"


rule corpus_find_duplicates:
    input:
        sources=SOURCES_READ,
        batches=lambda w: dag.corpus_batches("corpus.signatures", w.corpus),
        reserved=reserved_batches,
        pairs=dag.equal_keys,
    output:
        duplicates=directory(f"{RUN}/corpus/{{corpus}}/duplicates"),
        record=record("corpus.find_duplicates"),
    log:
        log_file("corpus.find_duplicates"),
    resources:
        **resources_of("corpus.find_duplicates"),
    params:
        contract=contract("corpus.find_duplicates"),
        signatures=units_of("signatures/"),
        documents=units_of("filtered/"),
        reserved=reserved_units,
        pairs=short("pairs"),
    message:
        "Find duplicates in the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus find_duplicates {params.contract:q}"
        " --input signatures {params.signatures:q} --input documents {params.documents:q}"
        " --input reserved {params.reserved:q} --input pairs {params.pairs:q}"
        " --output duplicates {output.duplicates} --record {output.record} 2> {log}"


rule corpus_deduplicate:
    input:
        sources=SOURCES_READ,
        batch=batch("corpus.filter"),
        duplicates=f"{RUN}/corpus/{{corpus}}/duplicates",
    output:
        batch=batch("corpus.deduplicate"),
    log:
        log_file("corpus.deduplicate"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.deduplicate"),
    params:
        contract=contract("corpus.deduplicate"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        duplicates=unit_file("duplicates/"),
        deduplicated=unit_file("deduplicated/"),
        removed=unit_file("removed/deduplicate."),
        private=unit_file("removed/deduplicate.", PRIVATE),
        record=record("corpus.deduplicate"),
    message:
        "Decide which documents stay of {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline corpus deduplicate {params.contract:q} --units {params.units:q}"
        " --batch {output.batch} --input documents {params.documents} --input duplicates {params.duplicates}"
        " --output deduplicated {params.deduplicated} --output removed {params.removed}"
        " --private={params.private:q} --record {params.record} 2> {log}"


rule corpus_ngrams:
    input:
        files=dag.leaving_items,
    output:
        ngrams=f"{RUN}/corpus/{{corpus}}/ngrams.parquet",
        record=record("corpus.ngrams"),
    log:
        log_file("corpus.ngrams"),
    resources:
        **resources_of("corpus.ngrams"),
    params:
        contract=contract("corpus.ngrams"),
    message:
        "Hash the n-grams of the evaluation items for the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus ngrams {params.contract:q} --input files {input.files:q}"
        " --output ngrams {output.ngrams} --record {output.record} 2> {log}"


rule corpus_matches:
    input:
        sources=SOURCES_READ,
        batch=batch("corpus.deduplicate"),
        ngrams=f"{RUN}/corpus/{{corpus}}/ngrams.parquet",
    output:
        batch=batch("corpus.matches"),
    log:
        log_file("corpus.matches"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.matches"),
    params:
        contract=contract("corpus.matches"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        deduplicated=unit_file("deduplicated/"),
        matches=unit_file("matches/"),
        record=record("corpus.matches"),
    message:
        "Search {wildcards.source}, batch {wildcards.batch}, for evaluation items"
    shell:
        "python -m pipeline corpus matches {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --input documents {params.documents} --input deduplicated {params.deduplicated}"
        " --input ngrams {input.ngrams} --output matches {params.matches} --record {params.record} 2> {log}"


rule corpus_find_items:
    input:
        sources=SOURCES_READ,
        ngrams=f"{RUN}/corpus/{{corpus}}/ngrams.parquet",
        batches=lambda w: dag.corpus_batches("corpus.matches", w.corpus),
    output:
        hits=directory(f"{RUN}/corpus/{{corpus}}/contaminated"),
        contamination=f"{RUN}/corpus/{{corpus}}/contamination.json",
        record=record("corpus.find_items"),
    log:
        log_file("corpus.find_items"),
    resources:
        **resources_of("corpus.find_items"),
    params:
        contract=contract("corpus.find_items"),
        matches=units_of("matches/"),
    message:
        "Decide which documents of the corpus {wildcards.corpus} hold evaluation items"
    shell:
        "python -m pipeline corpus find_items {params.contract:q} --input ngrams {input.ngrams}"
        " --input matches {params.matches:q} --output hits {output.hits}"
        " --output contamination {output.contamination} --record {output.record} 2> {log}"


rule corpus_decontaminate:
    input:
        sources=SOURCES_READ,
        batch=batch("corpus.deduplicate"),
        hits=f"{RUN}/corpus/{{corpus}}/contaminated",
        scores=dag.scores,
    output:
        batch=batch("corpus.decontaminate"),
    log:
        log_file("corpus.decontaminate"),
    threads: units_of_batch
    resources:
        **resources_of("corpus.decontaminate"),
    params:
        contract=contract("corpus.decontaminate"),
        units=dag.batch_units,
        documents=unit_file("filtered/"),
        deduplicated=unit_file("deduplicated/"),
        final=unit_file("final/"),
        hits=unit_file("contaminated/"),
        scores=dag.unit_scores,
        removed=unit_file("removed/decontaminate."),
        record=record("corpus.decontaminate"),
    message:
        "Write the final documents of {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline corpus decontaminate {params.contract:q} --units {params.units:q}"
        " --batch {output.batch} --input documents {params.documents}"
        " --input deduplicated {params.deduplicated} --input hits {params.hits} --input scores {params.scores}"
        " --output final {params.final} --output removed {params.removed} --record {params.record} 2> {log}"


rule corpus_count_items:
    input:
        sources=SOURCES_READ,
        files=dag.counted_items,
        final=lambda w: dag.corpus_batches("corpus.decontaminate", w.corpus),
    output:
        contamination=f"{RUN}/corpus/{{corpus}}/later_suites.json",
        record=record("corpus.count_items"),
    log:
        log_file("corpus.count_items"),
    resources:
        **resources_of("corpus.count_items"),
    params:
        contract=contract("corpus.count_items"),
        final=units_of("final/"),
    message:
        "Count the items of later evaluation suites in the corpus {wildcards.corpus}"
    shell:
        "python -m pipeline corpus count_items {params.contract:q} --input files {input.files:q}"
        " --input final {params.final:q} --output contamination {output.contamination}"
        " --record {output.record} 2> {log}"


rule corpus_statistics:
    input:
        sources=SOURCES_READ,
        contamination=f"{RUN}/corpus/{{corpus}}/contamination.json",
        quality=dag.evaluation_of_quality,
        filtered=lambda w: dag.corpus_batches("corpus.filter", w.corpus),
        deduplicated=lambda w: dag.corpus_batches("corpus.deduplicate", w.corpus),
        final=lambda w: dag.corpus_batches("corpus.decontaminate", w.corpus),
    output:
        statistics=f"{RUN}/corpus/{{corpus}}/statistics.json",
        record=record("corpus.statistics"),
    log:
        log_file("corpus.statistics"),
    resources:
        **resources_of("corpus.statistics"),
    params:
        contract=contract("corpus.statistics"),
        filtered=units_of("filtered/"),
        deduplicated=units_of("deduplicated/"),
        removed=units_of(
            "removed/filter.", "removed/deduplicate.", "removed/decontaminate."
        ),
        final=units_of("final/"),
    message:
        "Count the corpus {wildcards.corpus}: in = kept + removed"
    shell:
        "python -m pipeline corpus statistics {params.contract:q} --input filtered {params.filtered:q}"
        " --input deduplicated {params.deduplicated:q} --input removed {params.removed:q}"
        " --input contamination {input.contamination} --input quality {input.quality} --input final {params.final:q}"
        " --output statistics {output.statistics}"
        " --record {output.record} 2> {log}"


rule corpus_publish:
    input:
        sources=SOURCES_READ,
        statistics=f"{RUN}/corpus/{{corpus}}/statistics.json",
    output:
        card=f"{RUN}/corpus/{{corpus}}/README.md",
        croissant=f"{RUN}/corpus/{{corpus}}/croissant.json",
        dataset=f"{RUN}/corpus/{{corpus}}/dataset.json",
        sources=f"{RUN}/corpus/{{corpus}}/sources.parquet",
        page=report(
            f"{RUN}/corpus/{{corpus}}/dataset.html",
            category="Data sets",
            labels={"corpus": "{corpus}"},
        ),
        record=record("corpus.publish"),
    log:
        log_file("corpus.publish"),
    resources:
        **resources_of("corpus.publish"),
    params:
        contract=contract("corpus.publish"),
        removed=units_of(
            "removed/filter.", "removed/deduplicate.", "removed/decontaminate."
        ),
        final=units_of("final/"),
    message:
        "Describe the corpus {wildcards.corpus} as a data set"
    shell:
        "python -m pipeline corpus publish {params.contract:q} --input statistics {input.statistics}"
        " --input removed {params.removed:q} --input final {params.final:q} --output card {output.card}"
        " --output croissant {output.croissant} --output dataset {output.dataset} --output page {output.page}"
        " --output sources {output.sources}"
        " --record {output.record} 2> {log}"
