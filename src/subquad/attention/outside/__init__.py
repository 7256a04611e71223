"""Attentions of others as mechanisms: imported by name, built and called as they ask for, from trusted modules only."""
