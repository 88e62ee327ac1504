"""The profiles that ship with ampd are readable and sane."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampd.cost_model import load_profile

SHIPPED = sorted((Path(__file__).parents[2] / "configs" / "profiles").glob("*.json"))


def test_there_is_one() -> None:
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_profile_grows_with_work_and_states_its_error(path: Path) -> None:
    profile = load_profile(path)
    model = profile.cost_model()
    for fit in profile.t_pre:
        assert fit.error.heldout_median < 0.25
        times = [model.t_pre(h, i, fit.theta) for h in (0, 1024) for i in range(1, 2048, 31)]
        assert times[:67] == sorted(times[:67])
        assert times[67:] == sorted(times[67:])
        assert 0 < times[0] < times[66] < times[-1]
    for fit in profile.t_dec:
        assert 0 < model.t_dec(1, 256, fit.theta) < model.t_dec(8, 8 * 1024, fit.theta)
    assert {f.direction for f in profile.t_kv} == {"history", "increment"}
    assert all(model.t_kv(4096, f.theta_src, f.theta_dst, f.direction) > 0 for f in profile.t_kv)
