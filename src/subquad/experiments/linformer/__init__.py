"""Linformer: slots, shared projections and the length in masked language models (Wang et al. 2020)."""
