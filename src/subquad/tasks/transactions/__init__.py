"""Card transactions: predict the class of a client from the history, on simulated clients or on the user's own."""

from subquad.tasks.transactions.collecting import Columns
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.labelled import TransactionsTask
from subquad.tasks.transactions.loading import load_histories
from subquad.tasks.transactions.simulator import Simulator
from subquad.tasks.transactions.task import Transactions

__all__ = ["Columns", "Histories", "Simulator", "Transactions", "TransactionsTask", "load_histories"]
