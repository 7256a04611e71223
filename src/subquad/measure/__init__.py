"""Measurements of time, memory and spectra of callables, returned as numbers and rows."""
