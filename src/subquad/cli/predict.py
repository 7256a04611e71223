"""The command `subquad predict`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from subquad.checking import Checked, Count, FilePath, InnerShare, NonNegative, Positive, Seed, Whole, Words
from subquad.cli.follow import follow
from subquad.cli.foreign import options_of_train
from subquad.cli.lines import BadLines, LeftOut, Line, csv_text, open_lines
from subquad.cli.outside import naming_outside
from subquad.cli.parsing import parse
from subquad.cli.streams import say
from subquad.errors import SubquadError
from subquad.files import kind_of, write_whole
from subquad.runs import TrainedModel, load
from subquad.tasks.base import Completion, Drawing, Outlook

COMPLETION = ("tokens", "temperature", "seed")
"""Options that say how a text is continued."""


@dataclass(frozen=True)
class Predict(Checked):
    """Prints the answer of a trained model to a sequence: `subquad predict RUN 3 1 4 1 5`.

    A model of the task mlm fills in masked words: `subquad predict RUN "the cat [MASK] on the mat"`. A model of the task lm
    continues a text: `subquad predict RUN --text "Once upon a time"`. A model of the task images finishes pictures,
    `subquad predict RUN --complete 0.5`, and draws new ones: `subquad predict RUN --samples 16`. A model of the tasks tokens
    and series answers a file: `subquad predict RUN new.csv`.
    """

    run: Annotated[FilePath, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run of `subquad train`."""
    sequence: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SEQUENCE ...]")] = ()
    """The sequence, word by word. Without a sequence, --file or --data, lines are read from standard input."""
    file: FilePath | None = None
    """File with one sequence per line; for models of lm the text to continue."""
    text: Words | None = None
    """For models of lm and tokens: the text to continue, instead of a sequence, --file or standard input; may be empty."""
    tokens: Count | None = None
    """For models of lm and tokens: number of tokens to write; 200 if not set."""
    temperature: NonNegative | None = None
    """For models of lm, tokens and images: 0 always takes the likeliest token or value, 1 draws as the model predicts; if
    not set, 0.8 for texts and 1 for images."""
    seed: Seed | None = None
    """For models of lm, tokens and images, and for --horizon and --window: seed of the draws; 0 if not set."""
    data: FilePath | None = None
    """A file or folder in the format of the training data, labels or not: for models of transactions, events, classify,
    speech, tokens, series or lra-... to answer (PNG files for pictures), or of images to finish."""
    output: FilePath | None = None
    """PNG file for pictures; default: in the folder of the run. Or file for the answers to --data, a CSV line for each
    client, sequence, text or sound; default: standard output. Names that begin with = + - @ and are no numbers get an
    apostrophe in front, so that spreadsheets do not take them for formulas."""
    complete: InnerShare | None = None
    """For models of images: finish pictures of which this share is given, from the top: those of the test split, or of
    --data. The PNG file shows what was given, the finished picture and the original side by side."""
    horizon: Count | None = None
    """For models of events, with --data: number of events to forecast after the last one of each sequence, by sampling. The
    answers are a CSV line for each of them: 5%, 50% and 95% quantiles of its time, its likeliest type, and the probability
    of each type. Without --horizon and --window, only the next event is forecast, without sampling."""
    window: Positive | None = None
    """For models of events, with --data: length of the time after the last event of each sequence in which events are
    counted, by sampling, in the unit of the data's times: seconds if these are dates. The answers are the expected count,
    its 5% and 95% quantiles, the intensity if nothing has come until then, and the expected count of each type."""
    points: Count | None = None
    """With --window: number of equal parts of the window, each with a line of counts and intensity; 1 if not set."""
    samples: Count | None = None
    """For models of images: number of pictures to draw, or to finish with --complete; 8 if not set. With --horizon or
    --window: number of random continuations of each sequence; 100 if not set."""
    follow: bool = False
    """For models of events: read events from standard input, one line `time type` or `sequence time type`, separated by
    spaces or commas, and print a forecast after each. A line with only the name of a sequence ends that sequence."""
    score: bool = False
    """With --follow: print how unusual each event is, given those before it, instead of a forecast: its negative
    log-likelihood in nats, that of its time and of its type, the probability of a shorter gap, and that of its type."""
    every: Whole = 1
    """With --follow: number of events between two forecasts; 0 prints one forecast for each sequence at the end."""
    remember: Count = 1000
    """With --follow: largest number of sequences to remember; beyond it, the least recently active one is forgotten."""
    bad_lines: BadLines = "stop"
    """What to do with unusable lines of --file or of standard input: stop there, or skip them. Skipped lines are counted at
    the end, and the first ones are shown."""


def main(arguments: Sequence[str]) -> int:
    """Prints one line for each sequence."""
    options = parse(Predict, arguments, prog="subquad predict")
    _check(options)
    outlook = _outlook(options)
    trained = load(options.run, say=say)
    with naming_outside(trained.options.attention):
        _predict(trained, _with_named_file(options, trained), outlook)
    return 0


def _predict(trained: TrainedModel, options: Predict, outlook: Outlook | None) -> None:
    """Prints or writes what the options ask of a model."""
    if _is_drawing(options):
        trained.task.require_drawing()
        _draw(trained, options)
        return
    named = {name: value for name in COMPLETION if (value := getattr(options, name)) is not None}
    completion = {} if outlook else named
    if completion or options.text is not None:
        trained.task.require_completion()
    if trained.task.completes and options.data is None and not options.follow:
        _complete(trained, options, Completion(**completion))
    elif options.data is not None:
        _score(trained, options.data, options.output, outlook)
    elif options.sequence:
        print(trained.reply(options.sequence))
    else:
        _answer_lines(trained, options)


def _check(options: Predict) -> None:
    """Raises `SubquadError` for options that do not fit each other, and for a model that is no run."""
    if kind_of(options.run / "config.json") == "file" and kind_of(options.run / "run.json") == "nothing":
        raise SubquadError(f"{options.run} is a model of transformers, not a run: use it in Python, with subquad.hub.load")
    if options.sequence and options.file:
        raise SubquadError("give a sequence or --file, not both")
    if options.data and (options.sequence or options.file):
        raise SubquadError("give --data, or a sequence or --file, not both")
    if options.follow and (options.data or options.sequence or options.file):
        raise SubquadError("--follow reads standard input: give it without a sequence, --file or --data")
    if options.score and not options.follow:
        raise SubquadError("--score is for events as they come: give --follow too")
    if options.text is not None and (options.sequence or options.file or options.data or options.follow):
        raise SubquadError("--text is the text to continue: give it without a sequence, --file, --data or --follow")
    is_drawing = _is_drawing(options)
    if options.output and not options.data and not is_drawing and len(options.sequence) != 1:
        raise SubquadError("--output is for the scores of --data: give both")
    if is_drawing and (options.sequence or options.file or options.follow or options.text is not None):
        raise SubquadError(
            "--complete and --samples draw pictures: give them without a sequence, --file, --text or --follow"
        )
    if is_drawing and options.complete is None and options.data is not None:
        raise SubquadError(
            "--samples draws new pictures: leave out --data, or give --complete to finish pictures; to forecast events, "
            "give --horizon or --window too"
        )
    if options.data is not None and kind_of(options.data) == "nothing":
        raise SubquadError(f"there is no file or folder {options.data}: check the path given by --data")


def _with_named_file(options: Predict, trained: TrainedModel) -> Predict:
    """The options with a file in place of a sequence, if the only word of it names one and the task reads files."""
    if trained.task.reads_files and len(options.sequence) == 1 and _names_file(options.sequence[0]):
        return replace(options, sequence=(), data=Path(options.sequence[0]))
    if options.output and not options.data and not _is_drawing(options):
        raise SubquadError("--output is for the scores of --data: give both")
    return options


def _names_file(word: str) -> bool:
    """Whether a word names a file or folder. A word that no file can be named by, such as a long one, does not."""
    try:
        return kind_of(Path(word)) != "nothing"
    except SubquadError:
        return False


def _is_drawing(options: Predict) -> bool:
    """Whether pictures are asked for. With --horizon or --window, --samples counts continuations of events instead."""
    is_forecasting = options.horizon is not None or options.window is not None
    return options.complete is not None or (options.samples is not None and not is_forecasting)


def _outlook(options: Predict) -> Outlook | None:
    """How events are forecast by sampling, or None if that is not asked for. Options that do not fit are refused."""
    if options.horizon is None and options.window is None:
        if options.points is not None:
            raise SubquadError("--points is for forecasts by sampling: give --window too")
        return None
    if options.data is None:
        raise SubquadError("--horizon and --window forecast from sequences in a file: give it by --data")
    if options.horizon is not None and options.window is not None:
        raise SubquadError("--horizon forecasts a number of events, --window those in a time: give one of them")
    if options.points is not None and options.window is None:
        raise SubquadError("--points divides a window of time: give --window instead of --horizon")
    usual = Outlook()
    return Outlook(
        events=options.horizon or usual.events,
        samples=options.samples or usual.samples,
        window=options.window,
        points=options.points or usual.points,
        seed=options.seed or usual.seed,
    )


def _score(trained: TrainedModel, data: Path, output: Path | None, outlook: Outlook | None) -> None:
    """Writes a CSV line for each client, sequence or text in `data`, or several for each sequence of events."""
    with options_of_train(Predict, "a run keeps those that it was trained with, so change the file, or train again"):
        scored = trained.predict(data) if outlook is None else trained.forecast(data, outlook)
    for complaint in scored.complaints:
        say(complaint)
    table = csv_text([scored.columns, *scored.lines])
    if output is None:
        print(table, end="")
    else:
        write_whole(output, table)


def _draw(trained: TrainedModel, options: Predict) -> None:
    """Writes a PNG file with finished or new pictures, by default into the folder of the run, and prints its name."""
    named: dict[str, Any] = {"number": options.samples, "known": options.complete or 0.0}
    named |= {"temperature": options.temperature, "seed": options.seed}
    how = Drawing(**{name: value for name, value in named.items() if value is not None})
    name = "samples.png" if options.complete is None else f"completed-{options.complete:g}.png"
    output = options.output or options.run / name
    with options_of_train(Predict, "a run keeps those that it was trained with, so change the file, or train again"):
        content = trained.draw(how, options.data)
    write_whole(output, content)
    print(output)


def _complete(trained: TrainedModel, options: Predict, how: Completion) -> None:
    """Prints a text and its continuation."""
    text = " ".join(options.sequence) if options.text is None else options.text
    if options.text is None and not options.sequence:
        left_out = LeftOut(options.bad_lines)
        with open_lines(options.file) as lines:
            text = "\n".join(line.text for line in left_out.whole(lines))
        left_out.farewell()
    print(text + trained.complete(text, how))


def _answer_lines(trained: TrainedModel, options: Predict) -> None:
    """Answers input line by line, and prints at the end how many lines could not be used."""
    if not options.follow:
        trained.task.require_reply()
    left_out = LeftOut(options.bad_lines)
    try:
        with open_lines(options.file) as lines:
            if options.follow:
                stream = trained.follow(options.remember, score=options.score)
                follow(stream, lines, left_out, every=options.every, remember=options.remember)
            else:
                for line in left_out.usable(lines):
                    _answer(trained, line, left_out)
    finally:
        left_out.farewell()


def _answer(trained: TrainedModel, line: Line, left_out: LeftOut) -> None:
    try:
        print(trained.reply(line.text), flush=True)
    except SubquadError as error:
        left_out.add(line, str(error))
