rule sources_split:
    input:
        file=dag.large_file,
    output:
        parts=directory(f"{RUN}/sources/{{source}}/parts/{{file}}"),
        record=record("sources.split"),
    log:
        log_file("sources.split"),
    resources:
        **resources_of("sources.split"),
    params:
        contract=contract("sources.split"),
        bytes=dag.large_file_bytes,
    message:
        "Cut a large file of {wildcards.source} into parts"
    shell:
        "python -m pipeline sources split {params.contract:q} --input file {input.file:q}"
        " --output parts {output.parts} --record {output.record} 2> {log}"


rule sources_dataset:
    input:
        files=lambda w: [str(path) for path in run.files(w.source).values()],
    output:
        parts=directory(f"{RUN}/sources/{{source}}/parts/dataset"),
        record=record("sources.dataset"),
    log:
        log_file("sources.dataset"),
    resources:
        **resources_of("sources.dataset"),
    params:
        contract=contract("sources.dataset"),
    message:
        "Read the data set {wildcards.source}"
    shell:
        "python -m pipeline sources dataset {params.contract:q} --input files {input.files:q}"
        " --output parts {output.parts} --record {output.record} 2> {log}"


rule sources_listing:
    output:
        listing=directory(f"{RUN}/sources/{{source}}/listing"),
        record=record("sources.listing"),
    log:
        log_file("sources.listing"),
    resources:
        **resources_of("sources.listing"),
    params:
        contract=contract("sources.listing"),
        raw=dag.raw_folder,
    message:
        "List the files of {wildcards.source}"
    shell:
        "python -m pipeline sources listing {params.contract:q} --raw={params.raw:q}"
        " --output listing {output.listing} --record {output.record} 2> {log}"


rule sources_fingerprint:
    input:
        # Not ancient: Snakemake gives no other reason a thought where a job before this one runs again.
        listing=f"{RUN}/sources/{{source}}/listing",
        files=dag.batch_inputs,
    output:
        batch=batch("sources.fingerprint"),
    log:
        log_file("sources.fingerprint"),
    threads: units_of_batch
    resources:
        **resources_of("sources.fingerprint"),
    params:
        contract=contract("sources.fingerprint"),
        of=lambda w: dag.raw_hash(w.source, w.batch),
        raw=dag.raw_folder,
        units=dag.batch_units,
        fingerprint=f"{RUN}/sources/{{source}}/fingerprints/%unit.json",
        record=record("sources.fingerprint"),
    message:
        "Hash the raw files of {wildcards.source}, batch {wildcards.batch}"
    shell:
        "python -m pipeline sources fingerprint {params.contract:q} --units {params.units:q} --batch {output.batch}"
        " --of={params.of} --raw={params.raw:q}"
        " --input listing {input.listing}/%unit.json --input files @{input.listing}/%unit.json"
        " --output fingerprint {params.fingerprint} --record {params.record} 2> {log}"


rule sources_manifest:
    input:
        batches=lambda w: dag.batches("sources.fingerprint", [w.source]),
        entries=lambda w: (
            dag.batches("opt_out.entries", [w.source, *dag.with_same_opt_out(w)])
            if dag.opt_out(w)
            else []
        ),
        opt_out=dag.opt_out,
    output:
        manifest=f"{RUN}/sources/{{source}}/manifest.json",
        units=directory(f"{RUN}/sources/{{source}}/units"),
        record=record("sources.manifest"),
    log:
        log_file("sources.manifest"),
    resources:
        **resources_of("sources.manifest"),
    params:
        contract=contract("sources.manifest"),
        fingerprints=lambda w: shorten(
            f"{RUN}/sources/{w.source}/fingerprints/{unit}.json"
            for unit in run.units(w.source)
        ),
        entries=lambda w: shorten(
            f"{RUN}/sources/{w.source}/entries/{unit}.npy"
            for unit in (run.units(w.source) if dag.opt_out(w) else [])
        ),
        shared=lambda w: shorten(
            f"{RUN}/sources/{source}/entries/{unit}.npy"
            for source, unit in dag.units(dag.with_same_opt_out(w))
        ),
    message:
        "Write the manifest of {wildcards.source}"
    shell:
        "python -m pipeline sources manifest {params.contract:q} --input fingerprints {params.fingerprints:q}"
        " --input entries {params.entries:q} --input shared {params.shared:q} --input opt_out {input.opt_out:q}"
        " --output manifest {output.manifest} --output units {output.units}"
        " --record {output.record} 2> {log}"


# One for all sources, because Snakemake plans the whole run anew after each. It only says that all of them are read.
checkpoint sources_complete:
    input:
        expand(
            [
                f"{RUN}/sources/{{source}}/manifest.json",
                f"{RUN}/sources/{{source}}/units",
                f"{RUN}/sources/{{source}}/listing",
            ],
            source=[source.name for source in run.sources],
        ),
    output:
        touch(f"{RUN}/provenance/batches/sources"),
    message:
        "All sources are read"
