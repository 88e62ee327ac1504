"""T_pre, T_dec and T_kv: the cost functions every decision, plan and simulation uses."""
