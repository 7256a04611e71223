"""Further columns of events: read, learned, used by models, and carried through forecasts and streams."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from subquad import Linear, ModelOptions, SubquadError
from subquad.data.times import iso
from subquad.tasks import Events
from subquad.tasks.base import Outlook
from subquad.tasks.events import EventsTask
from subquad.tasks.events.columns import ColumnVectors, carried_fields, column_numbers, hidden_after, hide_some
from subquad.tasks.events.importance import importance_rows
from subquad.tasks.events.model import EventModel
from subquad.tasks.events.scales import Scales

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)
HEADS = "sequence,time,type,city,paid,tags,note,online,country,due,row_id"


def table(path: Path, sequences: int = 30, events: int = 6, heads: str = HEADS, seed: int = 0) -> Path:
    """Events whose city tells the type of the next event, with columns of every other kind."""
    rng = np.random.default_rng(seed)
    rows = [heads]
    for s in range(sequences):
        kinds = rng.integers(2, size=events + 1)
        for t in range(events):
            number = s * events + t
            cells = {
                "sequence": f"s{s}",
                "time": f"2024-03-{t + 1:02}T12:{rng.integers(60):02}:00",
                "type": "ab"[kinds[t]],
                "city": ("Rome", "Oslo")[kinds[t + 1]],
                "paid": f"{rng.normal(50, 9):.2f}" if number % 7 else "",
                "tags": "|".join("xyz"[: 1 + number % 3]),
                "note": f"bought {number} things of little use",
                "online": ("no", "yes")[number % 2],
                "country": ("IT", "NO", "SE")[s % 3],
                "due": f"2024-04-{1 + number % 28:02}",
                "row_id": str(10_000 + number),
            }
            rows.append(",".join(cells[name] for name in heads.split(",")))
    path.write_text("\n".join([*rows, ""]))
    return path


def task_of(path: Path, **options: Any) -> EventsTask:
    return replace(Events(data=str(path), inner=8), **options).prepare()


def built(task: EventsTask) -> EventModel:
    """A model whose further columns weigh as much as types, so that differences are seen."""
    model = task.build(Linear(), SMALL, torch.Generator().manual_seed(0))
    columns = model.stack.embed.columns
    assert isinstance(columns, ColumnVectors)
    with torch.no_grad():
        for part in columns.parameters():
            part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))
    return model.eval()


def test_every_column_is_recognized_learned_and_printed(tmp_path: Path) -> None:
    task = task_of(table(tmp_path / "t.csv"))
    kinds = {column.name: column.kind for column in task.scales.further_columns}
    assert kinds == {
        **{"city": "category", "paid": "number", "tags": "several", "note": "text"},
        **{"online": "boolean", "country": "category", "due": "time"},
    }
    assert task.scales.carried == ("country",)
    assert task.scales.dated
    assert [name for name, _ in task.scales.unused] == ["row_id"]
    said = "\n".join(task.description)
    assert "  city: category (2 values)" in said
    assert "  country: category of the sequence (3 values)" in said
    assert re.search(r"  due: time \(\d+ values, 2024-04-01 to 2024-04-\d\d\)", said)
    assert "  not used: row_id (an identifier" in said
    assert not task.complaints
    assert Scales.from_json(task.learned) == task.scales
    batch = task.batch(4, torch.Generator().manual_seed(0))
    model = task.build(Linear(), SMALL)
    columns = model.stack.embed.columns
    assert isinstance(columns, ColumnVectors)
    assert batch.columns.shape[2] == 1 + columns.layout.width
    assert sum(part.numel() for part in columns.parameters()) == column_numbers(columns.layout, model.model_dim)


def test_decisions_can_be_overridden_and_columns_left_out(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv")
    task = task_of(path, column_kinds=("note=unused", "paid=category", "row_id=number"))
    kinds = {column.name: column.kind for column in task.scales.further_columns}
    assert (kinds["paid"], kinds["row_id"], "note" in kinds) == ("category", "number", False)
    assert ("note", "as named") in task.scales.unused
    without = task_of(path, further_columns=False)
    assert not without.scales.further
    assert not without.description
    assert without.complaints[0].endswith("are not used: --no-further-columns was given")
    with pytest.raises(SubquadError, match="--column-kinds takes NAME=KIND"):
        Events(column_kinds=("note:unused",))


def test_times_of_parquet_are_dates(tmp_path: Path) -> None:
    """Also those before 1970, which are negative numbers of seconds."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    times = np.array([f"196{year}-05-01" for year in range(8)] * 4, "datetime64[s]")
    columns = {"id": np.repeat(list("abcd"), 8), "time": times, "type": ["x", "y"] * 16}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert task_of(tmp_path / "t.parquet").data.train.dated


def test_a_model_learns_from_a_column(tmp_path: Path) -> None:
    """The city of an event tells the type of the next one, which nothing else does."""
    task = task_of(table(tmp_path / "t.csv", sequences=60))
    generator = torch.Generator().manual_seed(0)
    model = task.build(Linear(), SMALL, generator)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        loss = task.loss(model, task.batch(16, generator))
        optimizer.zero_grad()
        (loss.total / loss.number).backward()
        optimizer.step()
    assert -task.score(model, task.data.test).type.mean() < 0.2 < np.log(2.0)
    rows = {row["column"]: row for row in importance_rows(model, task.data.test, 4096)}
    assert rows["city"]["low"] > 0.5
    assert rows["city"]["value"] == max(row["value"] for row in rows.values())
    assert rows.keys() == {column.name for column in task.scales.further_columns}


def test_no_event_sees_its_own_columns(tmp_path: Path) -> None:
    task = task_of(table(tmp_path / "t.csv"))
    model, test = built(task), task.data.test
    before = task.score(model, test)
    at = int(test.offsets[1]) - 1
    changed = tuple(
        column.take(np.where(np.arange(len(test.times)) == at, 0, np.arange(len(test.times)))) for column in test.columns
    )
    after = task.score(model, test._replace(columns=changed))
    assert_close(before.time + before.type, after.time + after.type, rtol=0, atol=0)
    changed = tuple(
        column.take(np.where(np.arange(len(test.times)) == 0, at, np.arange(len(test.times)))) for column in test.columns
    )
    after = task.score(model, test._replace(columns=changed))
    assert (before.type[:5] != after.type[:5]).all()


def test_new_data_are_read_as_those_trained_on(tmp_path: Path) -> None:
    task = task_of(table(tmp_path / "t.csv"))
    model = built(task)
    again = Events(data=str(tmp_path / "gone.csv"), inner=8).prepare(task.learned)
    new = table(tmp_path / "new.csv", sequences=2, events=3)
    assert again.predict(model, new).lines == task.predict(model, new).lines
    lacking = table(tmp_path / "less.csv", sequences=2, heads=HEADS.replace(",city", ""))
    with pytest.raises(SubquadError, match="trained with the column 'city', but the data have none: add the column"):
        again.predict(model, lacking)


def test_splits_of_a_folder_are_read_alike(tmp_path: Path) -> None:
    """In the test split, paid looks like a category, and is read as the number that it is in the training split."""
    for seed, name in enumerate(("train", "dev", "test")):
        table(tmp_path / f"{name}.csv", seed=seed)
    few = (tmp_path / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text(
        "\n".join([few[0], *(",".join([*line.split(",")[:4], "5", *line.split(",")[5:]]) for line in few[1:])]) + "\n"
    )
    task = task_of(tmp_path)
    assert [column.column for column in task.data.test.columns] == [column.column for column in task.data.train.columns]
    assert np.isfinite(task.score(built(task), task.data.test).time).all()


def test_following_is_reading(tmp_path: Path) -> None:
    """Words with COLUMN=VALUE, records, or a file: the same forecasts. Without columns they are others."""
    heads = HEADS.replace(",note", "")
    task = task_of(table(tmp_path / "t.csv", heads=heads))
    model = built(task)
    path = table(tmp_path / "new.csv", sequences=2, heads=heads, seed=7)
    read = {line[0]: line for line in task.predict(model, path).lines}
    by_words, by_records, without = (task.follow(model, 9) for _ in range(3))
    for line in path.read_text().splitlines()[1:]:
        record = dict(zip(heads.split(","), line.split(","), strict=True))
        words = [record[name] for name in ("sequence", "time", "type")]
        columns = [f"{name}={cell}" for name, cell in record.items() if name not in ("sequence", "time", "type", "row_id")]
        assert by_words.take([*words, *columns]) == by_records.take_record(record) == without.take(words) == words[0]
    for name, answer in read.items():
        assert by_words.forecast(name) == by_records.forecast(name)
        forecasts = by_words.forecast(name), answer
        times = [[iso(cell) for cell in forecast[3:6]] for forecast in forecasts]
        shares = [[float(cell) for cell in forecast[6:]] for forecast in forecasts]
        np.testing.assert_allclose(times[0], times[1], atol=60)
        np.testing.assert_allclose(shares[0], shares[1], rtol=1e-3)
        assert without.forecast(name) != by_words.forecast(name)
    with pytest.raises(SubquadError, match="then COLUMN=VALUE of 'city'"):
        by_words.take(["s0", "2024-05-01", "a", "town=Rome"])
    with pytest.raises(SubquadError, match="the event has no 'type' but 'time'"):
        by_records.take_record({"time": "1"})


def test_what_is_known_of_a_sequence_is_carried_on(tmp_path: Path) -> None:
    task = task_of(table(tmp_path / "t.csv"))
    features, carried = task.scales.further_columns, task.scales.carried
    fields = task.encoded.pad(np.arange(3)).columns
    kept = carried_fields(features, carried)
    assert int(kept.sum()) == 1
    after = hidden_after(fields[:, -1], kept)
    assert_close(after[:, kept], fields[:, -1][:, kept])
    assert (after[:, 0] == 1.0).all()
    assert not after[:, 1:][:, ~kept[1:]].any()
    generator = torch.Generator().manual_seed(0)
    many = fields[:1].expand(400, -1, -1)
    hidden = hide_some(many, kept, generator)[..., 0]
    assert (hidden.diff(dim=1) >= 0).all()
    assert 0.1 < float((hidden.sum(1) > 0).float().mean()) < 0.3
    follower = task.follow(built(task), 9)
    follower.take(["s", "2024-03-01", "a", "country=NO", "city=Rome"])
    follower.take(["s", "2024-03-02", "a"])
    assert_close(follower.known["s"].columns[1], hidden_after(follower.known["s"].columns[0], kept))


def test_continuations_do_without_columns(tmp_path: Path) -> None:
    task = task_of(table(tmp_path / "t.csv"))
    model = built(task)
    answer = task.forecast(model, tmp_path / "t.csv", Outlook(events=3, samples=8))
    assert len(answer.lines) == 90
    assert all(iso(line[2]) <= iso(line[3]) <= iso(line[4]) for line in answer.lines)


def test_a_run_of_before_further_columns(tmp_path: Path) -> None:
    """What it stored has none of them, and its data are read without."""
    path = table(tmp_path / "t.csv")
    learned = task_of(path, further_columns=False).learned
    old = {
        name: value for name, value in learned.items() if name not in ("further", "carried", "dated", "unused", "summary")
    }
    task = Events(data=str(path), inner=8).prepare(old)
    assert not task.data.train.columns
    assert task.batch(4, torch.Generator().manual_seed(0)).columns.shape[2] == 0
    assert "they were not used in training" in task.complaints[0]
