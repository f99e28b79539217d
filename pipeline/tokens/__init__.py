"""Token shards in Arrow IPC, their index, reader and sampler."""
