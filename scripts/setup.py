"""Build .venv from a bare Python 3.11 and requirements/cpu.lock. Does nothing when it is up to date.

Standard library only. Says in one line what is missing when something is.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "cpu.lock"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "ampd-setup.stamp"
LOG = VENV / "ampd-setup.log"
NEED_GB = 6.0  # 3.7 GB unpacked, the rest for pip's downloads

# pip's words for a failure, and what they mean.
CAUSES = (
    ("No space left on device", "the disk is full; {need:.0f} GB are needed"),
    ("Temporary failure in name resolution", "no network: pip cannot reach its package index"),
    ("Name or service not known", "no network: pip cannot reach its package index"),
    ("Failed to establish a new connection", "no network: pip cannot reach its package index"),
    ("Network is unreachable", "no network: pip cannot reach its package index"),
    ("Read timed out", "the network is too slow: pip timed out; run 'make setup' again"),
    ("No matching distribution found", "pip finds no build of a pinned package: is its package index reachable and complete?"),
)


class SetupFailed(Exception):
    """Setup cannot go on; the text is one line with the fix."""


def fingerprint() -> str:
    """Hash of everything the environment is made from."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def up_to_date() -> bool:
    """Whether .venv was made from the same files and still runs."""
    if not STAMP.is_file() or STAMP.read_text() != fingerprint():
        return False
    return subprocess.run([PYTHON, "-c", "import ampd"], capture_output=True, cwd="/").returncode == 0


def check_machine() -> None:
    """Raise SetupFailed unless the lock file fits this machine and the disk has room."""
    if sys.version_info[:2] != (3, 11):
        raise SetupFailed(
            f"Python 3.11 is needed, this is {platform.python_version()}; run 'make setup PYTHON=/path/to/python3.11'"
        )
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SetupFailed(f"cpu.lock is for linux x86_64, this is {sys.platform} {platform.machine()}; see docs/install.md")
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEED_GB and not PYTHON.exists():
        raise SetupFailed(f"{NEED_GB:.0f} GB of disk are needed under {ROOT}, {free:.1f} GB are free")


def make_venv() -> None:
    """Create .venv, or replace one that another Python made."""
    check = "import sys; sys.exit(sys.version_info[:2] != (3, 11))"
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0:
        return
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], capture_output=True, text=True)
    if done.returncode:
        raise SetupFailed("this Python cannot make virtual environments; on Debian: apt-get install python3.11-venv")


def pip(*args: str | Path) -> None:
    """Run pip in .venv, its words to the log. Raises SetupFailed with the cause."""
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-input", *args]
    with LOG.open("a+") as log:
        start = log.tell()
        if subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL).returncode == 0:
            return
        log.seek(start)
        said = log.read()
    for words, meaning in CAUSES:
        if words in said:
            raise SetupFailed(f"{meaning.format(need=NEED_GB)} (pip's log: {LOG})")
    raise SetupFailed(f"pip failed; its log: {LOG}")


def check_torch() -> None:
    """Raise SetupFailed when pip took a CUDA build of torch: the other CPU packages do not fit it."""
    version = next(VENV.glob("lib/python3.11/site-packages/torch/version.py")).read_text()
    if "\ncuda: Optional[str] = None" not in version:
        raise SetupFailed("pip took a CUDA build of torch, a CPU build is needed: see 'torch for the CPU' in docs/install.md")


def check_imports() -> None:
    """Raise SetupFailed unless the parts that carry compiled code load on this machine."""
    code = "import torch, vllm, nixl._api, dynamo._core, pyscipopt, redis, ampd.config"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise SetupFailed(f"installed, but not usable: {done.stderr.strip().splitlines()[-1]}")


def setup() -> None:
    """Make .venv match the lock file."""
    check_machine()
    STAMP.unlink(missing_ok=True)
    make_venv()
    rows = [row for row in LOCK.read_text().splitlines() if row and not row.startswith("#")]
    torch = next(row for row in rows if row.startswith("torch=="))
    steps = (
        (f"installing {torch}", lambda: pip(torch)),
        ("checking that it is a CPU build", check_torch),
        (f"installing {len(rows) - 1} packages", lambda: pip("-r", LOCK)),
        ("installing ampd itself, editable", lambda: pip("--no-build-isolation", "-e", ROOT)),
        ("checking that the packages load", check_imports),
    )
    began = time.monotonic()
    for number, (what, act) in enumerate(steps, 1):
        print(f"setup: [{number}/{len(steps)}] {what} ({time.monotonic() - began:.0f} s so far)", flush=True)
        act()
    STAMP.write_text(fingerprint())
    print(f"setup: done in {time.monotonic() - began:.0f} s; next: make serve", flush=True)


def main() -> int:
    """Run the setup; the exit code is 0 when .venv is ready."""
    if up_to_date():
        print("setup: .venv is up to date")
        return 0
    try:
        setup()
    except SetupFailed as e:
        print(f"setup: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run 'make setup' again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
