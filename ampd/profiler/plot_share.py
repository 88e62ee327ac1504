"""The distribution of T_kv / T_pre over a trace, drawn."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampd.bench.plot_style import STYLES, log_axis
from ampd.cost_model import Profile
from ampd.profiler.report import about
from ampd.profiler.trace_share import KvShare


def share_figure(share: KvShare, profile: Profile) -> Figure:
    """Histogram of the whole share; distribution functions of it and of both directions."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ratio = 100 * share.ratio
    most = max(float(np.quantile(ratio, 0.99)), 1.0)
    left.hist(np.minimum(ratio, most), bins=np.linspace(0, most, 31).tolist(), weights=np.full(len(ratio), 100 / len(ratio)),
              color="0.8", edgecolor="black", linewidth=0.6)  # fmt: skip
    left.set_xlabel("T_kv / T_pre (%)\nthe last bar holds all above")
    left.set_ylabel("rounds (%)")
    parts = (("history and increment", ratio), ("history", 100 * share.history_s / share.prefill_s),
             ("increment", 100 * share.increment_s / share.prefill_s))  # fmt: skip
    for (name, values), style, width in zip(parts, STYLES, (2.5, 1.2, 1.2), strict=False):
        right.step(
            np.sort(values), np.linspace(0, 100, len(values)), color=style.color, linestyle=style.line, linewidth=width, label=name
        )
    log_axis(right, "x", 10)
    right.set_xlabel("T_kv / T_pre (%)")
    right.set_ylabel("rounds at or below (%)")
    right.legend(loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=3, handlelength=2.4, columnspacing=1.0)
    median, p95 = np.quantile(ratio, (0.5, 0.95))
    figure.suptitle(
        f"T_kv / T_pre, theta {share.theta}: {about(profile)}; {len(ratio):,} incremental rounds, "
        f"median {median:.1f} %, p95 {p95:.1f} %; {share.outside:,} rounds outside the measured range",
        fontsize=9, x=0.01, ha="left", wrap=True,
    )  # fmt: skip
    return figure
