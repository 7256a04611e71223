"""Tables in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from subquad.report.tables import Table


def show(table: Table, console: Console) -> None:
    """Prints a table; numbers to the right."""
    drawn = RichTable(title=table.caption, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_style="bold")
    for at, name in enumerate(table.columns):
        numeric = any(row[at].value is not None for row in table.rows)
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(cell.text for cell in row))
    console.print(drawn)
