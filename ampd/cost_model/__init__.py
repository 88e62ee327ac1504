"""T_pre, T_dec, T_mixed and T_kv: cost functions, their file form and their error statements."""

from ampd.cost_model.default import CoarseCostModel
from ampd.cost_model.meta import Meta, Provenance
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.points import DecodePoint, KvPoint, MixedPoint, Points, PrefillPoint
from ampd.cost_model.profile import Profile, load_profile, save_profile
from ampd.cost_model.ranges import extrapolates, extrapolates_t_dec, extrapolates_t_kv, extrapolates_t_mixed

__all__ = [
    "CoarseCostModel",
    "DecodePoint",
    "KvPoint",
    "Meta",
    "MixedPoint",
    "PiecewiseCostModel",
    "Points",
    "PrefillPoint",
    "Profile",
    "Provenance",
    "extrapolates",
    "extrapolates_t_dec",
    "extrapolates_t_kv",
    "extrapolates_t_mixed",
    "load_profile",
    "save_profile",
]
