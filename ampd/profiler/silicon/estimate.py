"""`ampd profile --silicon`: a profile of a system that need not exist here."""

from __future__ import annotations

from collections.abc import Sequence

from ampd.cost_model import Points, Profile
from ampd.cost_model.fitting import fit_profile
from ampd.errors import ProfileError
from ampd.profiler.silicon import grid
from ampd.profiler.silicon.labels import label
from ampd.profiler.silicon.models import Shape, load_shape
from ampd.profiler.silicon.roofline import Roofline
from ampd.profiler.silicon.systems import System, load_system
from ampd.profiler.silicon.tables import TableTimes

_LEAST_KV = 4096  # tokens; with less room there are too few points to fit


def silicon_profile(
    system: str, model: str, tps: Sequence[int], *, block_size: int = 32, served_name: str | None = None
) -> Profile:
    """The profile that `model` should have on `system` for tensor-parallel degrees `tps`: an estimate, labelled so.

    `system` is a name or the YAML of an own one, `model` a folder with config.json or a published model's hub name,
    `served_name` what graphs call the model (default: `model`). Raises ProfileError naming the field, the value and the fix.
    """
    stated, shape = load_system(system), load_shape(model)
    if block_size < 1:
        raise ProfileError(f"block_size: {block_size} is no number of tokens; give 1 or more")
    degrees = sorted(set(tps))
    _check(stated, shape, degrees)
    points, tables = _points(stated, shape, degrees)
    capacities = {tp: shape.kv_capacity(stated, tp) // block_size * block_size for tp in degrees}
    return fit_profile(label(stated, shape, tables, capacities, block_size, served_name), points)


def silicon_points(system: str, model: str, tps: Sequence[int]) -> Points:
    """The points alone, in the order of `tps`. Raises like `silicon_profile`."""
    stated, shape = load_system(system), load_shape(model)
    _check(stated, shape, tps)
    return _points(stated, shape, tps)[0]


def parse_tps(text: str) -> list[int]:
    """Tensor-parallel degrees from a comma-separated list. Raises ProfileError."""
    degrees = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in degrees if not part.isdecimal() or int(part) < 1]
    if wrong or not degrees:
        raise ProfileError(f"tp: {', '.join(wrong) or repr(text)} is no tensor-parallel degree; give a list such as 1,2,4,8")
    return sorted({int(part) for part in degrees})


def _points(system: System, shape: Shape, tps: Sequence[int]) -> tuple[Points, str | None]:
    """Points, and the engine version of the tables that they come from."""
    points, tables = Points(kv=list(grid.transfer_points(shape, system, tps))), None
    for tp in tps:
        capacity = shape.kv_capacity(system, tp)
        times: grid.StepTimes = Roofline(shape, system, tp)
        if system.has_tables:
            times = TableTimes(shape, system, tp)
            tables = times.version
        points.prefill.extend(grid.prefill_points(times, tp, capacity))
        points.decode.extend(grid.decode_points(times, tp, capacity))
        points.mixed.extend(grid.mixed_points(times, tp, capacity))
    return points, tables


def _check(system: System, shape: Shape, tps: Sequence[int]) -> None:
    """Raise ProfileError for degrees that do not divide the model, exceed a node, or leave no room for KV."""
    node = system.node.num_gpus_per_node
    possible = [tp for tp in range(1, node + 1) if _divides(tp, shape)]
    if wrong := [tp for tp in tps if tp > node]:
        raise ProfileError(f"tp: {_list(wrong)} is more than the {node} GPUs of a node of {system.name}; give {node} at most")
    if wrong := [tp for tp in tps if tp not in possible]:
        raise ProfileError(
            f"tp: {_list(wrong)} does not divide {shape.name} ({shape.heads} heads, {shape.kv_heads} KV heads,"
            f" MLP of {shape.intermediate}); {_list(possible)} do"
        )
    if small := [tp for tp in tps if shape.kv_capacity(system, tp) < _LEAST_KV]:
        fits = [tp for tp in possible if shape.kv_capacity(system, tp) >= _LEAST_KV]
        fix = f"give --tp {','.join(map(str, fits))}" if fits else "no degree within a node is enough: take a smaller model"
        raise ProfileError(
            f"tp: {shape.name} does not fit {system.name} with tp {_list(small)}: {shape.weight_bytes / 1e9:.0f} GB of weights,"
            f" {system.gpu.mem_capacity / 1e9:.0f} GB a GPU; {fix}"
        )


def _divides(tp: int, shape: Shape) -> bool:
    return not (shape.heads % tp or shape.intermediate % tp or (shape.kv_heads % tp and tp % shape.kv_heads))


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
