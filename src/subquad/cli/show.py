"""Prints lines and tables on a terminal or into a pipe."""

from typing import IO, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import MofNCompleteColumn, Task, TextColumn
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from subquad.cli.streams import TolerantStdout
from subquad.report.tables import Table


class Output(Console):
    """Console on standard output without markup, so that names and paths may contain brackets and colons."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(file=cast(IO[str], TolerantStdout()), markup=False, emoji=False, highlight=False, quiet=quiet)


class PlainColumn(TextColumn):
    """The description of a bar, without markup. Its end is cut off where the line is too narrow for all columns."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False, table_column=Column(overflow="ellipsis"))

    def render(self, task: Task) -> Text:
        """Returns the description as one line."""
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class CountColumn(MofNCompleteColumn):
    """The number of steps done, such as 40/500, which is never cut off."""

    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=True))


def show(table: Table, console: Console) -> None:
    """Prints a table, with numbers aligned to the right."""
    title = Text(table.caption)
    drawn = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_style="bold")
    for at, name in enumerate(table.columns):
        numeric = any(row[at].value is not None for row in table.rows)
        drawn.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell.text) for cell in row))
    console.print(drawn)
