"""Experiments on published claims and tables, each with the grid to run, the verdicts and the page."""
