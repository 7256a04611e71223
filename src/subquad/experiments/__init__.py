"""Published claims and tables, each with the grid to run and the verdict on the rows."""
