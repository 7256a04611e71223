"""Which attention do these sequences need: a race with equal training time, and a decision with its evidence."""
