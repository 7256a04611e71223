"""The end of a race: prints what is recommended, keeps the model, and writes the page."""

import dataclasses
import shlex
from collections.abc import Sequence

from subquad.choose.converting import ModelRace
from subquad.choose.decision import Decision, Training, Wishes, decide
from subquad.choose.race import Race
from subquad.choose.standings import read_gives_up, read_standings
from subquad.choose.timing import early_sentence, time_sentence
from subquad.cli.show import Output, show
from subquad.cli.spelling import training_words
from subquad.report.choose import brief_table, write_choice_page
from subquad.results import Row, Run
from subquad.runs import read_options


def conclude(race: Race, wishes: Wishes, console: Output) -> Decision:
    """Prints the recommendation, keeps the best model, and writes the page."""
    training = Training(race.field.usual_steps, race.terms.budget, race.terms.jobs)
    decision = _recommended(race.run, race.ledger.rows, wishes, training, console)
    with race.ledger.phase("page"):
        _keep_model(race, decision, console)
        _write_page(race.run, console)
    early = early_sentence(race.ledger.rows, race.terms.budget, race.field.usual_steps)
    for sentence in (time_sentence(race.ledger.rows, race.terms.jobs), early):
        if sentence:
            console.print(sentence, soft_wrap=True)
    return decision


def _keep_model(race: Race, decision: Decision, console: Output) -> None:
    """Keeps the model of the recommended attention, or of the best one on the test, and says where it is."""
    chosen = race.chosen(decision.chosen)
    if not chosen or (folder := race.keep_best(chosen)) is None:
        return
    best = Run.open(folder, "train")
    of_which = chosen if chosen == decision.chosen else f"{chosen}, the best attention on the test"
    options, usual = read_options(best.about["options"]), race.field.usual_steps
    if options.training.steps >= usual or chosen in race.field.cuts:
        console.print(f"The model of {of_which}: {folder}; trained alone by:\n{best.about['command']}", soft_wrap=True)
        return
    training = dataclasses.replace(race.field.training, learning_rate=options.training.learning_rate)
    words = training_words(options._replace(training=training), best.about["seed"], race.task.data_size)
    console.print(
        f"The model of {of_which}, after {options.training.steps:,} of the usual {usual:,} steps: {folder}; trained alone "
        f"with all of them by:\n{shlex.join(['subquad', *words])}",
        soft_wrap=True,
    )


def conclude_model(race: ModelRace, console: Output) -> Decision:
    """Prints which conversion is recommended, keeps its model, and writes the page."""
    decision = _recommended(race.run, race.ledger.rows, race.terms.wishes, Training(), console)
    if (folder := race.keep_best(decision.chosen)) is not None:
        command = Run.open(race.folder_of(decision.chosen), "convert").about["command"]
        console.print(f"The converted model: {folder}; converted alone by:\n{command}", soft_wrap=True)
    elif decision.kind == "softmax":
        console.print("The model stays as it is; what was converted is in the folder trials of the race.", soft_wrap=True)
    _write_page(race.run, console)
    return decision


def _recommended(run: Run, rows: Sequence[Row], wishes: Wishes, training: Training, console: Output) -> Decision:
    """Decides, and prints the table and the sentences."""
    standings = read_standings(rows)
    decision = decide(standings, wishes, read_gives_up(run.about.get("mechanisms", {}), rows), training)
    if standings.contestants:
        show(brief_table(standings, decision), console)
    for sentence in decision.sentences:
        console.print(sentence, soft_wrap=True)
    return decision


def _write_page(run: Run, console: Output) -> None:
    page = run.folder / "report.html"
    write_choice_page([run], page)
    console.print(f"The page: {page}", soft_wrap=True)
