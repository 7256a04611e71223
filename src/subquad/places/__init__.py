"""Where trainings and measurements run: in processes of this machine, or on the nodes of a Ray cluster."""
