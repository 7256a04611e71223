"""`subquad convert`, as it is typed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Hybrid, Layers, Softmax, load
from subquad.attention import Mechanism
from subquad.cli import main
from subquad.results import Run
from tests.cli import test_mlm
from tests.conversion.models import save, write

FEW = ["--steps", "2", "--tune-steps", "2", "--texts", "20", "--batch-tokens", "64", "--cost-lengths"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and texts."""
    folder = tmp_path_factory.mktemp("convert")
    save(folder / "bert")
    write(folder / "texts")
    return folder


def test_a_model_of_hugging_face(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(f"a\tb\tc\t{n}\t{n % 6}\tw{n} w{n + 1} w3\tw{n} w{n * 2 % 9}" for n in range(12)) + "\nbad")
    arguments = [
        "convert",
        str(given / "bert"),
        "--attention",
        "learned",
        "--features",
        "12",
        "--text",
        str(given / "texts"),
    ]
    assert main([*arguments, *FEW, "--pairs", str(pairs), "--out", str(tmp_path / "run")]) == 0
    typed = capsys.readouterr()
    assert "pairs.csv: 1 line is left out" in typed.err
    assert "Loading weights" not in typed.err  # transformers' own bars
    assert "Test texts, with 95% intervals" in typed.out
    assert "Cosine by length" in typed.out
    assert "by development texts: matching made it" in typed.out
    assert "\nconversion, swapped: cosine" in typed.out
    assert "plain fine-tuning" in (tmp_path / "run" / "report.html").read_text()
    run = Run.open(tmp_path / "run", "convert")
    assert run.about["options"]["mechanism"] == {"feature_map": {"features": 12, "kind": "learned"}, "kind": "linear"}
    assert run.about["options"]["original"]["class"] == "BertModel"
    assert {row["recipe"] for row in run.rows()} == {"conversion", "plain fine-tuning"}
    assert {row["stage"] for row in run.rows() if row["metric"] == "spearman"} == {
        "original",
        "swapped",
        "distilled",
        "tuned",
    }
    assert main(["convert", str(tmp_path / "run" / "model"), "--text", str(given / "texts")]) == 2
    assert "was converted before" in capsys.readouterr().err


def test_going_on(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    arguments = ["convert", str(given / "bert"), "--text", str(given / "texts"), *FEW, "--no-controls"]
    run = tmp_path / "a run"
    with monkeypatch.context() as patched:
        patched.setattr("subquad.conversion.goals.relative_error", interrupt)
        assert main([*arguments, "--out", str(run)]) == 130
    assert f"subquad: interrupted; go on with: subquad convert --resume '{run}'" in capsys.readouterr().err
    assert not (run / "model").exists()
    assert main(["convert", "--resume", str(run)]) == 0
    assert (run / "model" / "config.json").exists()
    losses = [row["step"] for row in Run.open(run).rows() if row["metric"] == "loss"]
    assert losses == [1, 2, 3, 4]
    assert main([*arguments, "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = test_mlm.write(tmp_path / "texts")
    trained = tmp_path / "trained"
    options = ["--text", str(texts), "--vocabulary", "characters", "--attention", "softmax", "--no-page"]
    assert main(["train", "mlm", *test_mlm.SMALL, *options, "--out", str(trained)]) == 0
    out = tmp_path / "converted"
    assert main(["convert", str(trained), "--attention", "hybrid", "--block", "4", *FEW, "--out", str(out)]) == 0
    run = Run.open(out)
    names = ["conversion", "plain fine-tuning", "window alone", "softmax fine-tuned"]
    assert list(dict.fromkeys(row["recipe"] for row in run.rows())) == names
    before = next(
        row["value"] for row in Run.open(trained).rows() if row["metric"] == "perplexity" and row["split"] == "test"
    )
    rows = [row for row in run.rows() if row["metric"] == "perplexity" and row["split"] == "test"]
    assert rows[0]["stage"] == "original"
    assert rows[0]["value"] == pytest.approx(before, rel=1e-5)
    capsys.readouterr()
    assert main(["predict", str(out / "model"), "the cat [MASK]at on"]) == 0
    assert capsys.readouterr().out.startswith("the cat ")
    assert json.loads((out / "model" / "run.json").read_text())["options"]["mechanism"]["block"] == 4
    for arguments, said in (
        ([str(trained), "--text", str(texts)], "a run is converted on its own text and length"),
        ([str(trained), "--keep-layers", "0"], "all 1 layers would stay exact: keep fewer"),
        ([str(trained), "--attention", "hybrid,softmax*2"], "are the attentions of 3 layers, but the model has 1"),
        ([str(trained), "--attention", "softmax*2"], "all layers would keep their softmax attention"),
        ([str(out / "model")], "was trained with hybrid: a conversion starts from softmax"),
    ):
        assert main(["convert", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_only_some_layers_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, trained, out = test_mlm.write(tmp_path / "texts"), tmp_path / "trained", tmp_path / "converted"
    options = ["--text", str(texts), "--vocabulary", "characters", "--attention", "softmax", "--no-page"]
    assert main(["train", "mlm", *test_mlm.SMALL, "--layers", "2", *options, "--out", str(trained)]) == 0
    words = ["--attention", "hybrid,softmax", "--block", "4", "--no-controls"]
    assert main(["convert", str(trained), *words, *FEW, "--out", str(out)]) == 0
    model = load(out)
    assert model.options.attention == Layers((Hybrid(block=4), Softmax()))
    assert [module.options.kind for module in model.modules() if isinstance(module, Mechanism)] == ["hybrid", "softmax"]
    assert main(["predict", str(out / "model"), "the cat [MASK]at on"]) == 0


def test_a_model_of_transformers_is_no_run(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(given / "bert"), "the cat"]) == 2
    assert "is a model of transformers, not a run: use it in Python, with subquad.hub.load" in capsys.readouterr().err


def test_mistakes(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["--text", str(given / "texts")]
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a.txt").write_bytes(b"\0\1")
    (tmp_path / "lines.csv").write_text("one\ntwo\n")
    gpt2 = save(tmp_path / "gpt2", "GPT2LMHeadModel")
    pickled = Path(shutil.copytree(given / "bert", tmp_path / "pickled"))
    (pickled / "model.safetensors").unlink()
    torch.save({"weight": Path("more than a tensor")}, pickled / "pytorch_model.bin")
    bert = str(given / "bert")
    for arguments, said in (
        ([str(tmp_path / "nowhere"), *texts], "there is no folder"),
        ([str(tmp_path / "empty"), *texts], "is no model: it has neither a run.json"),
        ([bert, "--text", str(tmp_path / "empty")], "has no text in it"),
        ([bert, "--text", str(tmp_path / "binary")], "holds no text that can be used"),
        ([bert, *texts, "--attention", "lerned"], "there is no attention 'lerned': did you mean 'learned'?"),
        ([bert, *texts, "--attention", "softmax"], "there is no attention 'softmax'"),
        ([bert, *texts, "--pairs", str(tmp_path / "lines.csv")], "has no scores in column 5"),
        ([bert, *texts, "--minutes", "0"], "--minutes must be positive, but is 0"),
        ([bert, *texts, "--keep-layers", "7"], "there is no layer 7"),
        ([bert, *texts, "--goal", "logits"], "--goal logits needs a language model"),
        ([bert, *texts, "--length", "99"], "--length is 99"),
        ([str(gpt2), *texts, "--attention", "linformer"], "linformer has no causal form"),
        ([str(gpt2), *texts, "--pairs", str(tmp_path / "lines.csv")], "--pairs is for models that give vectors"),
        ([str(pickled), *texts], "are a pickle that holds more than tensors"),
        (["--resume", str(tmp_path / "empty")], "is not a run"),
    ):
        out = [] if arguments[0] == "--resume" else ["--out", str(tmp_path / "none")]
        assert main(["convert", *arguments, *out]) == 2, said
        printed = capsys.readouterr().err
        assert said in printed
        assert len([line for line in printed.splitlines() if line.startswith("subquad: ")]) == 1
        assert not (tmp_path / "none").exists()


def test_a_name_of_the_hub_without_a_network(
    monkeypatch: pytest.MonkeyPatch, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["convert", "nobody/no-such-model", "--text", str(given / "texts")]) == 2
    assert "is no folder here and cannot be had from the Hugging Face hub" in capsys.readouterr().err
