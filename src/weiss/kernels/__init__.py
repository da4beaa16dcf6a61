"""The speed: mean-field losses block by block, fused, or over the pairs that repel at all."""
