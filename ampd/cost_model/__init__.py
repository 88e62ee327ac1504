"""T_pre, T_dec and T_kv: cost functions, their file form and their error statements."""

from ampd.cost_model.default import CoarseCostModel, default_cost_model

__all__ = ["CoarseCostModel", "default_cost_model"]
