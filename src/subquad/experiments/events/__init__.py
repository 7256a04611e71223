"""Event sequences: FAVOR+ and others beside softmax (after Zuo et al. 2020)."""
