"""Card transactions: which attention tells two classes of clients apart best (after Baikalov et al.)."""
