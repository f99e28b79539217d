rule sources_fingerprint:
    input:
        files=dag.unit_files,
    output:
        fingerprint=f"{RUN}/sources/{{source}}/fingerprints/{{unit}}.json",
        record=record("sources.fingerprint", "source", "unit"),
    log:
        log_file("sources.fingerprint", "source", "unit"),
    params:
        contract=contract("sources.fingerprint"),
    message:
        "Hash the raw files of {wildcards.source}, unit {wildcards.unit}"
    shell:
        "python -m pipeline sources fingerprint {params.contract:q} --input files {input.files:q}"
        " --output fingerprint {output.fingerprint} --record {output.record} 2> {log}"


checkpoint sources_manifest:
    input:
        fingerprints=lambda w: [
            f"{RUN}/sources/{w.source}/fingerprints/{unit}.json"
            for unit in run.units(w.source)
        ],
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
        " --output manifest {output.manifest} --record {output.record} 2> {log}"
