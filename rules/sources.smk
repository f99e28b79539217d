rule sources_split:
    input:
        file=dag.large_file,
    output:
        parts=directory(f"{RUN}/sources/{{source}}/parts/{{file}}"),
        record=record("sources.split", "source", "file"),
    log:
        log_file("sources.split", "source", "file"),
    params:
        contract=contract("sources.split"),
        bytes=dag.raw_bytes,
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
        record=record("sources.dataset", "source"),
    log:
        log_file("sources.dataset", "source"),
    params:
        contract=contract("sources.dataset"),
    message:
        "Read the data set {wildcards.source}"
    shell:
        "python -m pipeline sources dataset {params.contract:q} --input files {input.files:q}"
        " --output parts {output.parts} --record {output.record} 2> {log}"


rule sources_fingerprint:
    input:
        files=dag.unit_inputs,
    output:
        fingerprint=f"{RUN}/sources/{{source}}/fingerprints/{{unit}}.json",
        record=record("sources.fingerprint", "source", "unit"),
    log:
        log_file("sources.fingerprint", "source", "unit"),
    params:
        contract=contract("sources.fingerprint"),
        bytes=dag.raw_bytes,
        files=dag.unit_files,
    message:
        "Hash the raw files of {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline sources fingerprint {params.contract:q} --input files {params.files:q}"
        " --output fingerprint {output.fingerprint} --record {output.record} 2> {log}"


checkpoint sources_manifest:
    input:
        fingerprints=lambda w: [
            f"{RUN}/sources/{w.source}/fingerprints/{unit}.json"
            for unit in run.units(w.source)
        ],
        opt_out=dag.opt_out,
    output:
        manifest=f"{RUN}/sources/{{source}}/manifest.json",
        record=record("sources.manifest", "source"),
    log:
        log_file("sources.manifest", "source"),
    params:
        contract=contract("sources.manifest"),
        fingerprints=short("fingerprints"),
    message:
        "Write the manifest of {wildcards.source}"
    shell:
        "python -m pipeline sources manifest {params.contract:q} --input fingerprints {params.fingerprints:q}"
        " --input opt_out {input.opt_out:q} --output manifest {output.manifest} --record {output.record} 2> {log}"
