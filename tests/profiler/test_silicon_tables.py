"""Estimates from aiconfigurator-core's measured tables, and how far a roofline is from them. Needs the extra `silicon`."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median

import pytest
import yaml

from ampd.cost_model import Points, Profile, load_profile
from ampd.errors import ProfileError
from ampd.profiler.silicon import silicon_profile
from ampd.profiler.silicon.estimate import silicon_points
from ampd.profiler.silicon.models import load_shape
from ampd.profiler.silicon.package import INSTALL, data_folder
from ampd.profiler.silicon.roofline import Roofline
from ampd.profiler.silicon.systems import load_system
from ampd.profiler.silicon.tables import TableTimes

pytestmark = pytest.mark.skipif(data_folder() is None, reason=f"aiconfigurator-core is not installed: {INSTALL}")
QWEN, LLAMA, MIXTRAL = "Qwen/Qwen3-32B", "meta-llama/Meta-Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1"
PROFILES = Path(__file__).parents[2] / "configs" / "profiles"
SHIPPED = [PROFILES / f"{model}-{on}.json" for model in ("qwen3-32b", "llama-3.1-70b", "mixtral-8x7b") for on in ("h200", "h20")]


@pytest.fixture(scope="module")
def h200() -> Profile:
    return silicon_profile("h200", LLAMA, [4])


# Read with the package's own command-line tool: H200, vLLM, tensor parallel 4, one sequence's T_pre, 4,096 tokens of context.
@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [
        (QWEN, {(0, 2048): 65.1, (7680, 512): 23.0, (0, 6144): 202.0}, {1: 7.1, 32: 9.9, 128: 16.9}),
        (LLAMA, {(0, 2048): 127.8, (7680, 512): 38.3, (0, 6144): 398.9}, {1: 12.4, 32: 15.8, 128: 25.3}),
    ],
)
def test_times_are_those_that_the_package_itself_prints(
    model: str, prefill: dict[tuple[int, int], float], decode: dict[int, float]
) -> None:
    times = TableTimes(load_shape(model), load_system("h200"), 4)
    assert {at: 1e3 * times.t_pre(*at) for at in prefill} == pytest.approx(prefill, abs=0.06)
    assert {batch: 1e3 * times.t_dec(batch, 4096) for batch in decode} == pytest.approx(decode, abs=0.11)


def test_a_mixed_step_is_the_packages_own_when_chunk_and_batch_are_as_long() -> None:
    times = TableTimes(load_shape(QWEN), load_system("h200"), 4)
    whole = times._engine.mixed_step_latency(2048, 8, 2048, 2)  # its decode context: 2,048 + 2
    assert 1e3 * times.t_mixed(8, 2050, 2048) == pytest.approx(whole)
    assert times.t_dec(8, 2050) < times.t_mixed(8, 2050, 16) < times.t_mixed(8, 2050, 2048)


def test_the_profile_says_where_its_times_are_from(h200: Profile) -> None:
    meta = h200.meta
    assert (meta.source, meta.engine, meta.model, meta.device) == ("estimated", "vllm", LLAMA, "h200_sxm")
    assert meta.provenance is not None
    assert (meta.provenance.package, meta.provenance.system) == ("aiconfigurator-core", "h200_sxm.yaml")
    assert meta.provenance.version == "0.12.0"
    assert meta.provenance.tables == ["data/h200_sxm/*/vllm/0.24.0"]
    assert meta.engine_version == "0.24.0 (tables)"


def test_the_fit_is_within_five_percent_of_the_tables_between_its_points(h200: Profile) -> None:
    times, cost = TableTimes(load_shape(LLAMA), load_system("h200"), 4), h200.cost_model()
    prefill = [(h, i) for h in (0, 700, 3000, 10_000, 30_000) for i in (20, 100, 300, 900, 2500, 7000)]
    decode = [(b, c) for b in (1, 3, 12, 40, 110, 230) for c in (300, 1500, 3000)]
    chunks = [(b, c, n) for b, c in ((2, 1000), (20, 3000), (100, 1500)) for n in (30, 200, 1500)]
    off = {
        "T_pre": [cost.t_pre(h, i, 4) / times.t_pre(h, i) - 1 for h, i in prefill],
        "T_dec": [cost.t_dec(b, b * c, 4) / times.t_dec(b, c) - 1 for b, c in decode],
        "T_mixed": [cost.t_mixed(b, b * c, n, 4) / times.t_mixed(b, c, n) - 1 for b, c, n in chunks],
    }
    assert {name for name, errors in off.items() if median(map(abs, errors)) > 0.05} == set()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_profile_is_what_the_command_makes(path: Path) -> None:
    shipped = load_profile(path)
    meta = shipped.meta
    assert meta.weights is not None
    theta = shipped.thetas[-1]
    made = silicon_points(path.stem.rpartition("-")[2], meta.weights, [theta])
    for kind in ("prefill", "decode", "mixed"):
        assert [p for p in getattr(shipped.points, kind) if p.theta == theta] == getattr(made, kind)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_profile_is_within_five_percent_of_its_points_for_each_theta(path: Path) -> None:
    shipped = load_profile(path)
    for fits in (shipped.t_pre, shipped.t_dec, shipped.t_mixed):
        assert [fit.theta for fit in fits] == shipped.thetas
        assert max(fit.error.heldout_median for fit in fits) <= 0.05
    for fit in shipped.t_pre:
        assert (fit.l_hist, fit.l_incr) == ((0, 32768), (16, 8192))
    for dec in shipped.t_dec:
        assert dec.batch == (1, 256)
        assert dec.context[1] >= 32768


def off_tables(system: str, model: str, tp: int) -> list[float]:
    """What the roofline of a system makes of its tables' points, relative."""
    points: Points = silicon_points(system, model, [tp])
    roofline = Roofline(load_shape(model), load_system(system), tp)
    prefill = [roofline.t_pre(p.l_hist, p.l_incr) / p.seconds - 1 for p in points.prefill]
    return prefill + [roofline.t_dec(p.batch, p.context // p.batch) / p.seconds - 1 for p in points.decode]


@pytest.mark.parametrize("system", ["h200", "h100_sxm"])
@pytest.mark.parametrize("model", [QWEN, MIXTRAL])
def test_a_roofline_of_a_hopper_gpu_is_near_its_tables(system: str, model: str) -> None:
    assert median(map(abs, off_tables(system, model, 4))) < 0.12


def test_an_own_yaml_beside_tables_uses_them(tmp_path: Path) -> None:
    h200 = load_system("h200")
    (tmp_path / "data").symlink_to(h200.folder / "data")
    shutil.copy(h200.folder / "query_versions.yaml", tmp_path)
    stated = yaml.safe_load(Path(h200.path).read_text())
    stated["gpu"]["mem_capacity"] *= 2
    (tmp_path / "big.yaml").write_text(yaml.safe_dump(stated))
    big, shape = load_system(str(tmp_path / "big.yaml")), load_shape(LLAMA)
    assert big.has_tables
    assert TableTimes(shape, big, 4).t_pre(0, 2048) == pytest.approx(TableTimes(shape, h200, 4).t_pre(0, 2048))
    assert shape.kv_capacity(big, 1) > 0 > shape.kv_capacity(h200, 1)


def test_a_model_without_tables_is_refused_in_one_line() -> None:
    with pytest.raises(ProfileError, match=r"has no times of mistralai/Mixtral.* on b60 with tp 8 .*for a roofline$"):
        silicon_points("b60", MIXTRAL, [8])


def test_names_are_met_halfway() -> None:
    assert load_system("h200").name == "h200_sxm"
    with pytest.raises(ProfileError, match="give h100_pcie or h100_sxm"):
        load_system("h100")
    with pytest.raises(ProfileError, match="such as Qwen/Qwen3-32B"):
        load_shape("Qwen3-32B")
