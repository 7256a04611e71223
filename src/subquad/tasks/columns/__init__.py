"""Columns of tables that have no role of their own, shared by tasks: how they are read, encoded, embedded and summarised."""
