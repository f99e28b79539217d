"""What a run through Slurm needs besides its stages; no step imports it, and none of it changes a result."""
