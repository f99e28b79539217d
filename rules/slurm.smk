"""What is kept of every snakemake that submits jobs to Slurm: whose they are, so that the next one finds them."""


onstart:
    # The plugin gives all its jobs one name; another executor has none.
    jobs_name = getattr(workflow.scheduler._executor, "run_uuid", None)
    if jobs_name is not None:
        locks = getattr(workflow.persistence, "_lockfile", {}).values()
        starts.begin(Path(RUN), jobs_name, list(map(str, locks)))


onsuccess:
    live.hand_over(Path(RUN))


onerror:
    live.hand_over(Path(RUN))
