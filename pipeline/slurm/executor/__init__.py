"""A Slurm executor plugin for Snakemake; of the project it uses only an `ExecutorHost`."""
