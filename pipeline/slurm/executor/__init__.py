"""Snakemake's executor for Slurm, a plugin of its own: of the project it knows an `ExecutorHost` and nothing else."""
