"""Charts and pages of runs, made from their rows."""
