"""The Long Range Arena (Tay et al. 2020): all mechanisms on five tasks, with one model and one budget for all."""
