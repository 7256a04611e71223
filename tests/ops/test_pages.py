"""Large pages: which memory they are asked for, and that tensors are what they would be without."""

import pytest
import torch

from subquad.ops import pages


def test_large_pages_are_asked_for_within_large_tensors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(pages, "_advise", lambda: lambda *arguments: asked.append(arguments))
    assert pages.new_empty(torch.empty(0), 2**21).shape == (2**21,)
    assert asked == []
    x = pages.new_zeros(torch.empty(0, dtype=torch.float64), 2**11, 2**11)
    ((begin, size, advice),) = asked
    assert advice == pages.ADVISE_LARGE_PAGES
    assert begin % pages.LARGE_PAGE == size % pages.LARGE_PAGE == 0
    assert x.data_ptr() <= begin < x.data_ptr() + pages.LARGE_PAGE
    assert 0 <= x.data_ptr() + 2**25 - (begin + size) < pages.LARGE_PAGE


def test_tensors_in_large_pages_hold_what_is_written() -> None:
    x = pages.new_zeros(torch.empty(0, dtype=torch.int32), 3, 2**21)
    assert x.shape == (3, 2**21)
    assert x.dtype == torch.int32
    assert not x.any()
    assert pages.in_large_pages(x) is x
