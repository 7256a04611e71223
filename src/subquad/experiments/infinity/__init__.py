"""The infinity-former: a memory of fixed size on the sorting task (Martins et al. 2022)."""
