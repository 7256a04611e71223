"""Recall: how much models remember of a sequence, by the size of their state (Arora et al. 2023, 2024)."""
