"""Step times from aiconfigurator-core's measured operator tables. The only user of that package."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ampd.errors import ProfileError
from ampd.profiler.silicon import package
from ampd.profiler.silicon.models import Shape
from ampd.profiler.silicon.systems import ENGINE, System

_BACKEND_SLOT = "current"  # the newest complete set of tables of an engine
_PROBE = 512  # tokens; operators without tables show when they are first asked for


class TableTimes:
    """Seconds of a forward pass of `shape` on `tp` GPUs of `system`. A `StepTimes` (points.py).

    Operators without a row of their own are interpolated by the package, and elementwise ones computed by its formulas.
    `version` is the engine version that the tables were measured with.
    """

    def __init__(self, shape: Shape, system: System, tp: int) -> None:
        """Raises ProfileError when the package is not installed or cannot model this."""
        if package.data_folder() is None:
            raise ProfileError(f"silicon: the tables of {system.name} need {package.NAME}: {package.INSTALL}")
        self.version, self._engine = _compile(shape, system, tp)

    def t_pre(self, l_hist: int, l_incr: int) -> float:
        return float(self._engine.predict_prefill_latency(1, l_hist + l_incr, l_hist)) / 1e3

    def t_dec(self, batch: int, context: int) -> float:
        # The package counts the token that the step makes in addition.
        return float(self._engine.predict_decode_latency(batch, context - 1, 2)) / 1e3

    def t_mixed(self, batch: int, context: int, chunk: int) -> float:
        """The package's own sum: what chunk and batch share, the chunk's attention, the batch's attention.

        It knows one prompt length for both, so chunk and batch are asked for apart.
        """
        _, shared, chunk_attention, _ = self._engine.mixed_step_breakdown(chunk, batch, chunk, 2)
        _, _, _, batch_attention = self._engine.mixed_step_breakdown(chunk, batch, context - 2, 2)
        return float(shared + chunk_attention + batch_attention) / 1e3


def _compile(shape: Shape, system: System, tp: int) -> tuple[str, Any]:
    from aiconfigurator_core.sdk import perf_database
    from aiconfigurator_core.sdk.engine import EngineHandle

    # It warns of every table that is borrowed for operators that this model does not have.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    systems = str(system.folder)
    # Given a folder it does not ask a hub for the model.
    with tempfile.TemporaryDirectory(prefix="ampd-") as folder:
        shutil.copy(shape.config, Path(folder) / "config.json")
        experts = {"moe_tp_size": tp} if shape.experts > 1 else {}
        try:
            version = perf_database.resolve_query_version(system.name, ENGINE, _BACKEND_SLOT, systems_paths=systems)
            engine = EngineHandle.compile(
                folder, system.name, ENGINE, backend_version=version, tp_size=tp, systems_path=systems, **experts
            )
            engine.predict_prefill_latency(1, _PROBE, 0)
        except (ValueError, RuntimeError) as e:
            raise ProfileError(
                f"silicon: {package.NAME} has no times of {shape.name} on {system.name} with tp {tp} ({str(e)[:80]}...);"
                " take another system, or a .yaml of your own without data_dir, for a roofline"
            ) from None
    return version, engine
