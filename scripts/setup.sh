#!/bin/sh
# Find a Python 3.11 and let it run setup.py. PYTHON=/path/to/python3.11 chooses one.
set -eu
cd "$(dirname "$0")/.."

for candidate in ${PYTHON:-python3.11 python3 python}; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    exec "$candidate" scripts/setup.py "$@"
  fi
done
echo "setup: no Python 3.11 found; install it (Debian 12: apt-get install python3.11-venv) or run 'make setup PYTHON=/path/to/python3.11'" >&2
exit 1
