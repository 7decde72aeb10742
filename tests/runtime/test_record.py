"""How long each step of a run took."""

from __future__ import annotations

import pytest

from mpcpipe.runtime.record import Span, steps_seconds


def update(action: str, end_s: float) -> Span:
    return Span("w", action, end_s - 0.5, end_s, 0.0, 0.0)


def test_steps_without_a_flush_end_with_the_update_of_their_last_stage() -> None:
    """Stage 1 is early once and late once; forward passes do not count; the end belongs to the last step."""
    spans = [update("0F0", 1.0), update("1U", 13.0), update("0U", 14.0), update("0U", 17.0), update("1U", 18.5)]
    spans += [update("1U", 20.0), update("0U", 21.0), update("0F3", 40.0)]
    assert steps_seconds(spans, 10.0, 22.0, 3) == pytest.approx([4.0, 4.5, 3.5])


def test_one_step_has_all_of_it() -> None:
    assert steps_seconds([update("0U 1U", 3.0), update("2U", 5.0)], 1.0, 6.0, 1) == [5.0]
