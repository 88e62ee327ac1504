"""What an estimated profile says of itself: that it is one, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version

from ampd.cost_model import Meta, Provenance
from ampd.profiler.silicon import package
from ampd.profiler.silicon.grid import TRANSPORTS
from ampd.profiler.silicon.models import MEMORY_SHARE, Shape
from ampd.profiler.silicon.systems import ENGINE, System


def label(
    system: System, shape: Shape, tables: str | None, capacities: Mapping[int, int], block_size: int, served_name: str | None
) -> Meta:
    """`tables`: the engine version of the measured tables; None: a roofline. `capacities`: KV tokens by theta."""
    return Meta(
        model=served_name or shape.name,
        weights=shape.name,
        dtype="bfloat16",
        engine=ENGINE,
        engine_version=f"{tables} (tables)" if tables else "none (roofline)",
        device=system.title,
        block_size=block_size,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        kv_capacity_tokens=capacities[min(capacities)],
        kv_capacity_by_theta={str(tp): tokens for tp, tokens in capacities.items()},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        transport=TRANSPORTS[-1],
        source="estimated",
        provenance=_provenance(system, tables),
        mode="silicon",
        notes=" ".join((_steps(system, tables), _transfers(system), _memory(system))),
    )


def _provenance(system: System, tables: str | None) -> Provenance:
    file = f"{system.name}.yaml"
    if tables is None:
        return Provenance(package="ampd", version=version("ampd"), system=file, notes="; ".join(system.ampd.sources))
    read = [f"{system.data_dir}/*/{ENGINE}/{tables}"]
    return Provenance(package=package.NAME, version=package.installed_version(), system=file, tables=read)


def _steps(system: System, tables: str | None) -> str:
    if tables:
        return "An estimate from measured operator tables, not a measurement of a live engine; errors are the fit's against them."
    gpu, extra = system.gpu, system.ampd
    return (
        "An estimate from a roofline: nothing was measured, and errors are the fit's against the roofline."
        f" Of {gpu.bfloat16_tc_flops / 1e12:.0f} TFLOPS (BF16, dense) matrix products reach {extra.compute_efficiency:.0%} and"
        f" attention {extra.attention_efficiency:.0%}; of {gpu.mem_bw / 1e12:.2f} TB/s"
        f" {gpu.mem_bw_empirical_scaling_factor:.0%} are reached; an operator takes {extra.launch_s * 1e6:g} us beside its work."
    )


def _transfers(system: System) -> str:
    inside, across = system.node.intra_node_bw / 1e9, system.node.inter_node_bw / 1e9
    return (
        f"T_kv is a lower bound: the stated {inside:.0f} GB/s a GPU inside a node ({TRANSPORTS[0]}) and {across:.0f} GB/s across"
        f" nodes ({TRANSPORTS[1]}), and {system.ampd.transfer_start_s * 1e3:g} ms a transfer."
    )


def _memory(system: System) -> str:
    return (
        f"KV capacity: {MEMORY_SHARE:.0%} of {system.gpu.mem_capacity / 1e9:.0f} GB a GPU, less weights and"
        f" {system.misc.other_mem / 1e9:.1f} GB of buffers."
    )
