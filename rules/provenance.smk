rule provenance_crate:
    input:
        page=f"{RUN}/report/index.html",
        energy=f"{RUN}/report/energy.json",
        records=all_records,
        page_record=[record("opt_out.remains")] * bool(dag.remains())
        + [record("report.page")],
        workflow=ancient(workflow_files),  # a comment in a rule makes no result anew
    output:
        crate=f"{RUN}/ro-crate-metadata.json",
        readme=f"{RUN}/README.md",
        prov=f"{RUN}/provenance/prov.json",
        kept=directory(f"{RUN}/provenance/workflow"),
        record=record("provenance.crate"),
    log:
        log_file("provenance.crate"),
    resources:
        **resources_of("provenance.crate"),
    params:
        contract=contract("provenance.crate"),
        records=run_records,
        # The evidence is attested first, so that the crate names a line of the log that covers it.
        folder=lambda w, output: str(Path(output.crate).parent),
    message:
        "Describe the run as an RO-Crate"
    shell:
        "python -m pipeline provenance attest {params.folder:q} 2> {log} &&"
        " python -m pipeline provenance crate {params.contract:q} --input files {params.records:q} {input.page_record} {input.page} {input.energy}"
        " --input workflow {input.workflow:q} --output crate {output.crate} --output readme {output.readme}"
        " --output prov {output.prov} --output kept {output.kept} --record {output.record} 2>> {log}"
