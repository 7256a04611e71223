"""Instruments: they take callables, not mechanisms, and give numbers and rows."""
