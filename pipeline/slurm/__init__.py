"""What a run through Slurm needs besides its chapters; no step imports it, and none of it changes a result."""
