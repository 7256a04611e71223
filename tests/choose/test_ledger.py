"""Which setting of each attention goes into the final."""

from subquad import Softmax
from subquad.choose.ledger import pick_setting
from subquad.choose.space import Setting, Tried


def tried(**scores: float) -> list[Tried]:
    """Settings with the learning rates .005, .002 and so on, by name, and their scores."""
    return [Tried(Setting(float(rate.replace("r", ".")), Softmax()), score) for rate, score in scores.items()]


def test_settings_that_are_alike_follow_the_rate_at_which_another_attention_learned() -> None:
    learned, plateau = tried(r002=0.9997, r005=0.2399), tried(r005=0.2406, r002=0.236)
    everything = [*learned, *plateau]
    assert pick_setting(plateau, everything, -1.0).learning_rate == 0.002
    assert pick_setting(learned, everything, -1.0).learning_rate == 0.002
    clear = tried(r005=0.5, r002=0.236)
    assert pick_setting(clear, [*learned, *clear], -1.0).learning_rate == 0.005
    assert pick_setting(plateau, plateau, -1.0).learning_rate == 0.005  # nobody learned
    both = tried(r005=1.0, r002=1.0)
    assert pick_setting(both, [*both, *plateau, *plateau], -1.0).learning_rate == 0.002
    assert pick_setting(plateau, [*both, *plateau, *plateau], -1.0).learning_rate == 0.002


def test_settings_that_are_alike_where_low_scores_are_good() -> None:
    first, second = tried(r01=80.0, r004=95.0), tried(r004=100.0, r01=100.2)
    assert pick_setting(second, [*first, *second], 1.0).learning_rate == 0.01
    third = tried(r004=100.0, r01=110.0)
    assert pick_setting(third, [*first, *third], 1.0).learning_rate == 0.004
