"""Pre-training in segments with FSDP2 or DeepSpeed."""
