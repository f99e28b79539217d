"""Jobs: the contract of a step, batches of units, attempts, versions, environments and reused results."""
