"""All benchmarks of the scheduling core, or those named: `python -m benchmarks [routing reordering ...]`."""

from __future__ import annotations

import subprocess
import sys

CORE = ("routing", "reordering", "binding", "ledger", "cost_model", "coordinator")


def main(names: list[str]) -> int:
    """Run each in a process of its own, one after the other. Returns 1 if one failed, 2 for an unknown name."""
    if unknown := [name for name in names if name not in CORE]:
        print(f"benchmarks: {unknown[0]!r} is none of {', '.join(CORE)}", file=sys.stderr)
        return 2
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in names or CORE]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
