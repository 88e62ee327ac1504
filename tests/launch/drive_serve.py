"""`ampd serve` with stand-ins for all processes but Redis: `drive_serve.py NOTES FLAGS_JSON serve GRAPH.yaml ...`."""

import json
import sys
from pathlib import Path

from graphs import stand_in_plan

from ampd.cli.main import main
from ampd.launch import running

if __name__ == "__main__":
    running.plan = stand_in_plan(Path(sys.argv[1]), json.loads(sys.argv[2]))  # type: ignore[assignment]
    main(sys.argv[3:])
