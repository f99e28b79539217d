"""What a job is: the contract that every step runs in, batches of units, attempts, versions, workers."""
