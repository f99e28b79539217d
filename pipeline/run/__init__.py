"""What a run is: its configuration, its steps and their DAG, what is stale, one start at a time, its platform."""
