"""Targets of sequences, shared by tasks: what is predicted of one, how labels are read, and how predictions are judged."""
