"""External meters, read afterwards: Slurm's, EAR's, and the table of a smart meter or a power distribution unit."""
