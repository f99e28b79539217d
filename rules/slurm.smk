"""What a run through Slurm does besides its rules."""


# On a login node these take less time than a job takes to start.
localrules:
    sources_listing,
    plan_estimate,


onstart:
    refuse_what_is_missing()
    executor.prepare(workflow, Path(RUN), run.slurm, logger.warning)


onsuccess:
    accounting.end(Path(RUN), logger.warning)


onerror:
    accounting.end(Path(RUN), logger.warning)
