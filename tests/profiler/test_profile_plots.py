"""The plots of `ampd profile show`, rendered to files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_profile import BATCH, CONTEXT, HISTORY, make_profile

from ampd.bench.lengths import LengthRound, LengthSession
from ampd.cost_model import Profile
from ampd.profiler.curves import Curve, curves
from ampd.profiler.groups import group_points
from ampd.profiler.plots import draw_profile
from ampd.profiler.trace_share import kv_shares

SESSION = LengthSession("s", tuple(LengthRound(prompt=400 * n, history=400 * (n - 1), output=9) for n in range(1, 9)))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile()


@pytest.fixture(scope="module")
def drawn(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = draw_profile(profile, kv_shares(profile, [SESSION]), tmp_path_factory.mktemp("plots") / "new")
    return {file.name: file for file in files}


def curve(profile: Profile, name: str) -> Curve:
    return next(c for c in curves(profile) if c.name == name)


def test_every_function_and_the_share_are_drawn_as_png_and_svg(drawn: dict[str, Path]) -> None:
    stems = ("t_pre-theta-1", "t_dec-theta-1", "t_mixed-theta-1", "t_kv-history-theta-1-1", "t_kv-increment-theta-1-1",
             "t_kv-over-t_pre-theta-1")  # fmt: skip
    assert set(drawn) == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}


def test_pngs_are_large_enough_for_print_and_readable_without_colour(drawn: dict[str, Path]) -> None:
    for name, file in drawn.items():
        if name.endswith(".png"):
            with Image.open(file) as image:
                assert image.width >= 1200
                grey = np.asarray(image.convert("L"))
            assert 0.01 < (grey < 140).mean() < 0.5  # dark ink on paper, neither empty nor filled


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t_pre-theta-1.svg", ("time (ms)", "new tokens l_incr", "l_hist 0", "l_hist 1,024", "marks: measured, lines: fitted",
                               "fitted / measured - 1 (%)", "held-out p95", "tiny on a CPU")),
        ("t_dec-theta-1.svg", ("sequences in the batch", "context of a sequence 256")),
        ("t_kv-history-theta-1-1.svg", ("tokens moved", "T_kv history, theta 1-&gt;1")),
        ("t_kv-over-t_pre-theta-1.svg", ("T_kv / T_pre (%)", "rounds at or below (%)", "7 incremental", "outside the measured")),
    ],
)  # fmt: skip
def test_axes_have_names_and_units(drawn: dict[str, Path], name: str, words: tuple[str, ...]) -> None:
    text = " ".join(re.findall(r"<(?:text|tspan)[^>]*>([^<]*)<", drawn[name].read_text()))
    for word in words:
        assert word in text


def test_groups_differ_by_more_than_colour(drawn: dict[str, Path]) -> None:
    svg = drawn["t_pre-theta-1.svg"].read_text()
    lines = re.findall(r'style="fill: none; (?:stroke-dasharray: ([\d.,]+); [^"]*)?stroke: (#\w{6}); stroke-width: 1.2', svg)
    dashes = {color: dash for dash, color in lines}
    assert len(dashes) == len(HISTORY)
    assert len(set(dashes.values())) == len(HISTORY)


def test_a_drawing_is_the_same_each_time(profile: Profile, drawn: dict[str, Path], tmp_path: Path) -> None:
    again = draw_profile(profile, [], tmp_path)
    assert all(file.read_bytes() == drawn[file.name].read_bytes() for file in again if file.suffix == ".svg")


@pytest.mark.parametrize(
    ("name", "groups"), [("T_pre", len(HISTORY)), ("T_dec", len(CONTEXT)), ("T_mixed", len(BATCH)), ("T_kv", 1)]
)
def test_groups_hold_the_points_of_one_line(profile: Profile, name: str, groups: int) -> None:
    function = curve(profile, name)
    found, rest = group_points(function, 5)
    assert len(found) == groups
    assert sorted(row for g in found for row in g.rows) == list(range(len(function.seconds)))
    assert len(rest) == 0
    for group in found:
        args, xs = group.line(function)
        at = np.interp(np.log(group.x(function)), np.log(xs), function.predicted(args))
        # The line that is drawn goes where the fit says for the group's own points.
        assert at == pytest.approx(function.predicted(function.args[group.rows]), rel=0.03)


def test_the_groups_that_are_left_out_are_named(profile: Profile) -> None:
    function = curve(profile, "T_pre")
    found, rest = group_points(function, 2)
    assert [g.fixed["l_hist"] for g in found] == [HISTORY[0], HISTORY[-1]]
    assert set(function.args[rest, 0]) == set(HISTORY[1:-1])
