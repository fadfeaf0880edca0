"""What a layout of ranks takes, from a model's config alone: no torch, no megatron-core, no GPU."""
