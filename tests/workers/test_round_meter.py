"""One definition of TTFT and ITL."""

from __future__ import annotations

import pytest

from ampd.workers.round_meter import RoundMeter


def test_ttft_counts_from_arrival_and_itl_is_the_mean_gap() -> None:
    meter = RoundMeter(arrived_at=10.0)
    assert meter.add(10.5, 1) is None
    assert meter.add(10.6, 1) == (pytest.approx(0.1), 1)
    assert meter.add(10.9, 2) == (pytest.approx(0.3), 2)
    assert meter.ttft_s == pytest.approx(0.5)
    assert meter.itl_s == pytest.approx(0.4 / 3)
    assert meter.tokens == 4


def test_outputs_without_tokens_are_not_tokens() -> None:
    meter = RoundMeter(arrived_at=0.0)
    assert meter.add(1.0, 0) is None
    assert (meter.ttft_s, meter.itl_s, meter.tokens) == (0.0, 0.0, 0)
    meter.add(2.0, 1)
    assert meter.add(3.0, 0) is None
    assert (meter.ttft_s, meter.itl_s, meter.tokens) == (2.0, 0.0, 1)
