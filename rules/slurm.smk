"""What a run through Slurm does besides its rules."""


# On a login node these take less time than a job takes to start.
localrules:
    sources_listing,
    plan_estimate,


onstart:
    refuse_what_is_missing()
    # The profile cannot name a folder of the run, and only now is there an executor.
    executor = workflow.scheduler._executor
    if hasattr(executor, "slurm_logdir"):
        if workflow.executor_settings.logdir is None:
            executor.slurm_logdir = Path(f"{RUN}/logs/slurm").absolute()
        if workflow.executor_settings.efficiency_report_path is None:
            accounting = Path(f"{RUN}/provenance/accounting")
            workflow.executor_settings.efficiency_report_path = accounting
        Waiting(executor.run_uuid, 60 * run.slurm.start_minutes, logger.warning)
