rule opt_out_entries:
    input:
        # Not ancient, as above.
        listing=f"{RUN}/sources/{{source}}/listing",
        files=dag.batch_inputs,
    output:
        batch=batch("opt_out.entries"),
    log:
        log_file("opt_out.entries"),
    threads: units_of_batch
    resources:
        **resources_of("opt_out.entries"),
    params:
        contract=contract("opt_out.entries"),
        of=lambda w: dag.raw_hash(w.source, w.batch),
        raw=dag.raw_folder,
        units=dag.batch_units,
        entries=f"{RUN}/sources/{{source}}/entries/%unit.npy",
        record=record("opt_out.entries"),
    message:
        "Find what an opt-out list can name in {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline opt_out entries {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --of={params.of} --raw={params.raw:q}"
        " --input listing {input.listing}/%unit.json --input files @{input.listing}/%unit.json"
        " --output entries {params.entries} --record {params.record} 2> {log}"


rule opt_out_reserved:
    input:
        # The units' own files are known to the checkpoint, and thousands of them slow Snakemake down.
        sources=ancient(sources_complete("opt_out.reserved")),
        twin=ancient(dag.first_twin("opt_out.reserved")),
    output:
        batch=batch("opt_out.reserved"),
    log:
        log_file("opt_out.reserved"),
    threads: units_of_batch
    resources:
        **resources_of("opt_out.reserved"),
    params:
        contract=contract("opt_out.reserved"),
        of=batch_hash,
        raw=dag.raw_folder,
        source=f"{RUN}/sources/{{source}}",
        units=dag.batch_units,
        reserved=unit_file("reserved/"),
        record=record("opt_out.reserved"),
    message:
        "Sign what is reserved in {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline opt_out reserved {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --of={params.of} --raw={params.raw:q}"
        " --input unit {params.source}/units/%unit.json --input files @{params.source}/listing/%unit.json"
        " --output reserved {params.reserved} --record {params.record} 2> {log}"


rule opt_out_forgotten:
    input:
        # Before this checkpoint nobody knows which units run again.
        sources=rules.sources_complete.output,
        manifests=reserving_manifests,
        reserved=reserved_batches,
        deduplicated=lambda w: dag.corpus_batches("corpus.deduplicate", w.corpus),
        final=lambda w: dag.corpus_batches("corpus.decontaminate", w.corpus),
    output:
        forgotten=f"{RUN}/corpus/{{corpus}}/forgotten.json",
        record=record("opt_out.forgotten"),
    log:
        log_file("opt_out.forgotten"),
    resources:
        **resources_of("opt_out.forgotten"),
    params:
        contract=contract("opt_out.forgotten"),
        reserved=reserved_units,
        removed=units_of("removed/filter.", "removed/deduplicate."),
        signatures=units_of("signatures/"),
        final=units_of("final/"),
    message:
        "Search the corpus {wildcards.corpus} for what is to be forgotten"
    shell:
        "python -m pipeline opt_out forgotten {params.contract:q} --input manifests {input.manifests:q}"
        " --input reserved {params.reserved:q} --input removed {params.removed:q}"
        " --input signatures {params.signatures:q} --input final {params.final:q}"
        " --output forgotten {output.forgotten} --record {output.record} 2> {log}"


rule opt_out_remains:
    input:
        sources=rules.sources_complete.output,
        manifests=reserving_manifests,
        records=all_records,
    output:
        remains=f"{RUN}/report/remains.json",
        record=record("opt_out.remains"),
    log:
        log_file("opt_out.remains"),
    resources:
        **resources_of("opt_out.remains"),
    params:
        contract=contract("opt_out.remains"),
        reserved=lambda w: shorten(
            name
            for corpus in run.corpus
            for name in dag.reserved_files("reserved/", corpus)
        ),
        removed=lambda w: shorten(
            name
            for corpus in run.corpus
            for name in dag.corpus_files("removed/deduplicate.", corpus)
        ),
        shards=lambda w: shorten(
            f"{RUN}/tokens/{tokens}/{split}/{shard}.arrow"
            for tokens, section in run.tokens.items()
            for split in ("train", "validation")
            for shard in range(section.shards)
        ),
    message:
        "Search what lies below the results folder for what is to be forgotten"
    shell:
        "python -m pipeline opt_out remains {params.contract:q} --input manifests {input.manifests:q}"
        " --input reserved {params.reserved:q} --input removed {params.removed:q} --input shards {params.shards:q}"
        " --output remains {output.remains} --record {output.record} 2> {log}"
