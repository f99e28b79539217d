rule plan_estimate:
    output:
        plan=f"{RUN}/plan/plan.json",
        record=record("plan.estimate"),
    log:
        log_file("plan.estimate"),
    resources:
        **resources_of("plan.estimate"),
    params:
        contract=contract("plan.estimate"),
    message:
        "Estimate compute, memory, time, energy, carbon and cost"
    shell:
        "python -m pipeline plan estimate {params.contract:q} --output plan {output.plan}"
        " --record {output.record} 2> {log}"
