"""What a job costs in joules, measured or estimated."""
