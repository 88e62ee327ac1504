"""T_pre, T_dec and T_kv: cost functions, their file form and their error statements."""

from ampd.cost_model.default import CoarseCostModel
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.profile import DecodePoint, KvPoint, Meta, Points, PrefillPoint, Profile, load_profile, save_profile
from ampd.cost_model.ranges import extrapolates

__all__ = [
    "CoarseCostModel",
    "DecodePoint",
    "KvPoint",
    "Meta",
    "PiecewiseCostModel",
    "Points",
    "PrefillPoint",
    "Profile",
    "extrapolates",
    "load_profile",
    "save_profile",
]
