"""Conversions of a trained masked language model to another attention (after Dmitriev et al. 2020)."""
