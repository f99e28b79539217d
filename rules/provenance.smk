rule provenance_crate:
    input:
        page=f"{RUN}/report/index.html",
        records=all_records,
        page_record=[record("opt_out.remains")] * bool(dag.remains())
        + [record("report.page")],
    output:
        crate=f"{RUN}/ro-crate-metadata.json",
        record=record("provenance.crate"),
    log:
        log_file("provenance.crate"),
    resources:
        **resources_of("provenance.crate"),
    params:
        contract=contract("provenance.crate"),
        records=run_records,
    message:
        "Describe the run as an RO-Crate"
    shell:
        "python -m pipeline provenance crate {params.contract:q} --input files {params.records:q} {input.page_record} {input.page}"
        " --output crate {output.crate} --record {output.record} 2> {log}"
