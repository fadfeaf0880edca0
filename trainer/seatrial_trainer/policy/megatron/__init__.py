"""The policy backend on megatron-core: one model cut over ranks by tensors, layers, experts and data."""
