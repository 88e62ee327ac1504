"""What a GPU system states of itself: the YAML of aiconfigurator-core, with a section `ampd` for what else a roofline needs."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from ampd.errors import ProfileError
from ampd.profiler.silicon import package

Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
ENGINE = "vllm"  # whose tables are read


class Gpu(msgspec.Struct, frozen=True):
    """Of one GPU: bytes, bytes/s and dense FLOP/s at their stated peak; `mem_bw_empirical_scaling_factor` is the share reached."""

    mem_bw: Positive
    mem_capacity: Positive
    bfloat16_tc_flops: Positive
    mem_bw_empirical_scaling_factor: Share = 0.8
    mem_empirical_constant_latency: Positive = 3e-6


class Node(msgspec.Struct, frozen=True):
    """Bytes/s a GPU in one direction, inside a node and between nodes; seconds of latency."""

    num_gpus_per_node: Annotated[int, msgspec.Meta(ge=1)]
    intra_node_bw: Positive
    inter_node_bw: Positive
    p2p_latency: Positive = 1e-5


class Misc(msgspec.Struct, frozen=True):
    """Bytes of a GPU that are neither weights nor KV; NCCL's by tensor-parallel degree."""

    nccl_mem: dict[int, float] = {}
    other_mem: float = 3.5 * 2**30


class Extra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ampd's own section. The defaults are those with which the roofline meets the H200 tables best (docs/profiling.md).

    `compute_efficiency` is the share of the stated FLOP/s that matrix products reach, `attention_efficiency` attention,
    `link_efficiency` the share of the node's links that all-reduces reach; `launch_s` is what every operator takes beside its
    work, `all_reduce_s` every all-reduce. `transfer_start_s` is what a KV read takes before its first byte.
    """

    title: str = ""
    sources: list[str] = []
    compute_efficiency: Share = 0.7
    attention_efficiency: Share = 0.7
    link_efficiency: Share = 0.8
    launch_s: Positive = 5e-6
    all_reduce_s: Positive = 7.5e-6
    transfer_start_s: Positive = 1e-3


class System(msgspec.Struct, frozen=True):
    """A system, `name` as its file is called. Keys that ampd does not use are left alone: aiconfigurator-core has more of them."""

    gpu: Gpu
    node: Node
    misc: Misc = Misc()
    ampd: Extra = Extra()
    data_dir: str = ""
    path: str = ""

    @property
    def name(self) -> str:
        return Path(self.path).stem

    @property
    def title(self) -> str:
        return self.ampd.title or self.name

    @property
    def folder(self) -> Path:
        """Where `data_dir` starts, and where aiconfigurator-core looks for the system."""
        return Path(self.path).parent

    @property
    def has_tables(self) -> bool:
        """Whether measured operator tables of the engine belong to it."""
        return bool(self.data_dir) and all((self.folder / self.data_dir / kind / ENGINE).is_dir() for kind in ("gemm", "attention"))


def load_system(name: str) -> System:
    """A system by name (ampd's own, aiconfigurator-core's; `h200` for `h200_sxm`), or the YAML of one by path.

    Raises ProfileError naming the field, the value and what would do.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    known = _known()
    if name in known:
        return _read(known[name])
    longer = [key for key in known if key.startswith(f"{name}_")]
    if len(longer) == 1:
        return _read(known[longer[0]])
    near = longer or difflib.get_close_matches(name, known, n=3)
    meant = f"{' or '.join(near)}" if near else f"one of {', '.join(sorted(known))}"
    missing = "" if package.data_folder() else f"; {package.INSTALL} for more names"
    raise ProfileError(f"silicon: no system is called {name!r}; give {meant}, or a .yaml file of your own{missing}")


def _known() -> dict[str, Path]:
    folders = [Path(str(files("ampd.profiler.silicon"))) / "systems"]
    if data := package.data_folder():
        folders.append(data / "systems")
    # A system's YAML names its node; aiconfigurator-core keeps other YAMLs beside them.
    found = {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob("*.yaml"))}
    return {name: path for name, path in found.items() if "\nnode:" in path.read_text()}


def _read(path: Path) -> System:
    try:
        raw: Any = yaml.safe_load(path.read_text())
    except OSError as e:
        raise ProfileError(f"silicon: {path}: cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ProfileError(f"silicon: {path}: not valid YAML ({str(e).splitlines()[0]})") from None
    if not isinstance(raw, dict):
        raise ProfileError(f"silicon: {path}: not a system: it has no keys gpu and node (docs/profiling.md)")
    try:
        return msgspec.convert({**raw, "path": str(path)}, System, strict=False)
    except msgspec.ValidationError as e:
        raise ProfileError(f"silicon: {path}: {e}; docs/profiling.md has the keys of a system") from None
