"""Models of Hugging Face as something to convert."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from subquad import Favor, Linear, SubquadError
from subquad.conversion.stretches import draw_stretches
from tests.conversion.models import WORDS, documents, hf, original, pretrained, save


def test_the_teacher_is_the_original(tmp_path: Path) -> None:
    teacher = original(tmp_path, "BertForMaskedLM")
    plain = hf.BertForMaskedLM.from_pretrained(tmp_path).eval()
    batch = teacher.held_out("test", 3, 16, 0)
    with torch.no_grad():
        wanted = plain(input_ids=batch.tokens, output_hidden_states=True)
        found = teacher.outputs(teacher.teacher, batch, logits=True)
    assert_close(found.logits, wanted.logits[batch.chosen], atol=1e-4, rtol=1e-4)
    assert len(found.hidden) == 3
    assert_close(found.hidden[2], wanted.hidden_states[3], atol=1e-4, rtol=1e-4)


LANGUAGE = ["BertForMaskedLM", "DistilBertForMaskedLM", "RobertaForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"]


@pytest.mark.parametrize("kind", LANGUAGE)
def test_logits_are_those_of_the_chosen_places(tmp_path: Path, kind: str) -> None:
    teacher = original(tmp_path, kind)
    student = teacher.student([Linear()] * 3, 0)
    batch = teacher.held_out("test", 4, 20, 0)
    with torch.no_grad():
        everywhere = student(input_ids=batch.tokens, attention_mask=batch.keep.long()).logits
        found = teacher.outputs(student, batch, logits=True)
    assert_close(found.logits, everywhere[batch.chosen])
    assert found.hidden[-1].shape == (4, 20, 16)  # all places, whatever the head was shown


def test_masked_batches(tmp_path: Path) -> None:
    teacher = original(tmp_path, "BertForMaskedLM")
    batch = teacher.batch(4000, 20, 0)
    assert batch.tokens.shape == (200, 20)
    assert 0.12 < float(batch.chosen.double().mean() / batch.keep.double().mean()) < 0.17
    assert not bool(batch.chosen[:, 0].any())  # [CLS]
    assert torch.equal(batch.tokens[~batch.chosen], batch.right[~batch.chosen])
    assert 0.7 < float((batch.tokens[batch.chosen] == WORDS.index("[MASK]")).double().mean()) < 0.9
    assert all(torch.equal(a, b) for a, b in zip(batch, teacher.batch(4000, 20, 0), strict=True))
    assert not torch.equal(batch.right, teacher.batch(4000, 20, 1).right)


def test_causal_batches_ask_for_the_next_token(tmp_path: Path) -> None:
    batch = original(tmp_path, "GPT2LMHeadModel").held_out("test", 3, 16, 0)
    assert torch.equal(batch.right[:, :-1], batch.tokens[:, 1:])
    assert torch.equal(batch.chosen[:, :-1], batch.keep[:, 1:])
    assert not bool(batch.chosen[:, -1].any())


def test_held_out_text_is_not_learned_from(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    splits = [teacher.training, teacher.splits["development"], teacher.splits["test"]]
    assert sorted(text for split in splits for text in split) == sorted(documents().texts)
    assert all(splits)
    assert len({text for split in splits for text in split}) == len(documents().texts)


def test_stretches_begin_with_a_sentence_where_one_is_near() -> None:
    text = "one two three. " + "Four five six seven eight nine ten. " * 40
    drawn = draw_stretches([text], 20, 10, torch.Generator().manual_seed(0))
    assert all(part.startswith(("Four", "one")) for part in drawn)
    assert all(len(part) <= 60 for part in drawn)
    assert draw_stretches(["short", "text"], 4, 100, torch.Generator().manual_seed(0))


def test_padding_changes_no_vector(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    student = teacher.student([Favor(features=8)] * 3, 0)
    together = teacher.encode(["w1 w2 w3 w4 w5 w6 w7", "w8 w9"])
    alone = teacher.encode(["w8 w9"])
    assert together.keep.sum(1).tolist() == [9, 4]
    for pooling in ("mean", "cls", "max"):
        teacher.pooling = pooling
        with torch.no_grad():
            found, wanted = (
                teacher.pool(teacher.outputs(student, batch).hidden[-1], batch.keep) for batch in (together, alone)
            )
        assert_close(found[1], wanted[0], atol=1e-5, rtol=1e-4)


def test_pooling_is_what_the_folder_says(tmp_path: Path) -> None:
    assert original(tmp_path / "plain").pooling == "mean"
    (tmp_path / "cls" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "cls" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    teacher = original(tmp_path / "cls")
    assert teacher.pooling == "cls"
    teacher.save(teacher.student([Linear()] * 3, 0), [Linear()] * 3, tmp_path / "saved")
    assert (tmp_path / "saved" / "1_Pooling" / "config.json").is_file()


def test_embeddings_stay(tmp_path: Path) -> None:
    teacher = original(tmp_path, "BertForMaskedLM")
    student = teacher.student([Linear()] * 3, 0)
    kept = {id(parameter) for parameter in teacher.embeddings(student)}
    names = {name for name, parameter in student.named_parameters() if id(parameter) in kept}
    assert "bert.embeddings.word_embeddings.weight" in names
    assert all(".embeddings." in name or name.startswith("cls.predictions") for name in names)


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    def refused(folder: Path, **given: Any) -> str:
        with pytest.raises(SubquadError) as error:
            pretrained.Pretrained(folder, documents(), **given)
        return str(error.value)

    said = refused(save(tmp_path / "classes", "BertForSequenceClassification"))
    assert said.startswith("BertForSequenceClassification is neither an encoder nor a masked or causal language model")
    assert "must be from 8 to the 32 tokens" in refused(save(tmp_path / "bert"), length=33)
    assert "must be from 8 to the 32 tokens" in refused(tmp_path / "bert", length=2)
    teacher = original(tmp_path / "before")
    teacher.save(teacher.student([Linear()] * 3, 0), [Linear()] * 3, tmp_path / "after")
    assert "was converted before: convert the model that it was made of" in refused(tmp_path / "after")
    config = hf.BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=len(WORDS), encoder_ffn_dim=16)
    with pytest.raises(SubquadError, match="BartModel has an encoder and a decoder"):
        pretrained.kind_of(hf.BartModel(config))


def test_few_pairs_are_from_all_over_them(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    assert teacher.pairs() is None
    words = [f"w{number}" for number in range(10)]
    teacher.compare(words, words[::-1], [float(number) for number in range(10)])
    assert teacher.pairs().scores == [float(number) for number in range(10)]
    assert teacher.pairs(4).scores == [0.0, 3.0, 6.0, 9.0]
    assert teacher.pairs(4).second[0].tokens[:, 1].tolist() == [WORDS.index(f"w{9 - number}") for number in (0, 3, 6, 9)]


def test_pairs(tmp_path: Path) -> None:
    lines = ["a\tb\tc\t1\t4.5\tw1 w2\tw3", "broken", "a\tb\tc\t2\tno\tw1\tw2", "a\tb\tc\t3\t1\tw1\tw2 w3\tmore"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    first, second, scores, said = pretrained.read_pairs(tmp_path / "pairs.csv")
    assert (first, second, scores) == (["w1 w2", "w1"], ["w3", "w2 w3"], [4.5, 1.0])
    assert said == ["pairs.csv: 2 lines are left out, without a score and two sentences: the first is line 2"]
    (tmp_path / "none.csv").write_text("x\ny")
    with pytest.raises(SubquadError, match="has no scores in column 5"):
        pretrained.read_pairs(tmp_path / "none.csv")
    with pytest.raises(SubquadError, match=r"cannot read .*nowhere.csv: No such file or directory"):
        pretrained.read_pairs(tmp_path / "nowhere.csv")


def test_a_model_in_half_precision_is_trained_in_float32(tmp_path: Path) -> None:
    folder = save(tmp_path / "llama", "LlamaForCausalLM")
    hf.LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    teacher = pretrained.Pretrained(folder, documents())
    attention = [Linear()] * len(teacher.origins)
    student = teacher.student(attention, 0)
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    teacher.save(student, attention, tmp_path / "saved")
    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").dtype == torch.bfloat16


def test_pooling_of_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"pooling_mode_cls_token": True}))
    monkeypatch.setattr(pretrained, "cached_file", lambda *names, **options: str(file))
    assert pretrained._pooling("org/name") == "cls"
    file.write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(SubquadError, match="pooling_mode_lasttoken"):
        pretrained._pooling("org/name")
