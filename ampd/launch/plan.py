"""From a graph to the processes that make it up. Pure: no process, port or file is touched here."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ampd.config import Graph, Worker

# Components start in this order, those of one stage together, and stop in the other order.
START = {"redis": 0, "worker": 1, "frontend": 1, "coordinator": 2}
STOP = {"frontend": 0, "coordinator": 1, "worker": 2, "redis": 3}
# Seconds from SIGTERM to SIGKILL. Their sum over the kinds stays under the 15 s that a stop may take.
# vLLM's executor alone waits 5 s for its processes.
GRACE_S = {"frontend": 1.5, "coordinator": 1.5, "worker": 9.5, "redis": 0.5}
GRAPH_FILE = "graph.yaml"  # in the run folder: what the processes of a run read


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process. `env` is laid over the launcher's environment; one `ready_*` field says how to see that it serves."""

    name: str
    component: str
    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_file: Path | None = None
    ready_socket: Path | None = None
    ready_url: str | None = None
    metrics_port: int | None = None

    @property
    def start_stage(self) -> int:
        return START[self.kind]

    @property
    def stop_stage(self) -> int:
        return STOP[self.kind]

    @property
    def grace_s(self) -> float:
        return GRACE_S[self.kind]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a run adds to its graph. `kv_ports` has one port for each worker process, for its NIXL side channel.

    `discovery` holds the DYN_* variables by which processes of this graph find each other.
    """

    run_dir: Path
    namespace: str
    redis_server: Path | None
    kv_ports: Sequence[int]
    discovery: Mapping[str, str]
    metrics_ports: Sequence[int] = ()

    @property
    def graph_file(self) -> Path:
        return self.run_dir / GRAPH_FILE

    @property
    def redis_socket(self) -> Path:
        return self.run_dir / "redis.sock"

    def ready_file(self, name: str) -> Path:
        return self.run_dir / "ready" / name


def private_discovery(run_dir: Path) -> dict[str, str]:
    """Dynamo's planes for one machine: discovery by files in the run folder, no etcd, no NATS."""
    return {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(run_dir / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_RESPONSE_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
    }


def plan(graph: Graph, layout: Layout) -> list[ProcessSpec]:
    """All processes of a graph, in starting order. `layout.kv_ports` must hold a port for each worker process."""
    env = _common_env(graph, layout)
    specs = [_redis(layout)] if layout.redis_server else []
    ports = iter(layout.kv_ports)
    for group in graph.workers:
        specs += [_worker(graph, group, replicas, next(ports), layout, env) for replicas in processes(group)]
    specs.append(_frontend(graph, layout, env))
    specs += [_coordinator(index, layout, env) for index in range(graph.coordinator.replicas)]
    return sorted(_metered(specs, layout.metrics_ports), key=lambda spec: spec.start_stage)


def _metered(specs: Sequence[ProcessSpec], ports: Sequence[int]) -> Iterator[ProcessSpec]:
    """Give a Prometheus endpoint to each process of ampd's own, as long as there are ports. The frontend has one already."""
    free = iter(ports)
    for spec in specs:
        port = next(free, None) if spec.kind in ("worker", "coordinator") else None
        yield spec if port is None else replace(spec, metrics_port=port, env={**spec.env, "DYN_SYSTEM_PORT": str(port)})


def processes(group: Worker) -> list[range]:
    """The replicas of each of a group's processes: one, or as many simulated ones as the graph says."""
    each = group.sim.per_process if group.engine == "sim" else 1
    return [range(first, min(first + each, group.replicas)) for first in range(0, group.replicas, each)]


def components(graph: Graph) -> list[str]:
    """Names that `--component` accepts."""
    return ["redis", *(group.name for group in graph.workers), "frontend", "coordinator"]


def _common_env(graph: Graph, layout: Layout) -> dict[str, str]:
    # Dynamo binds the first address that is not loopback unless told otherwise.
    host = graph.transport.host
    env = {
        **layout.discovery,
        "DYN_TCP_RPC_HOST": host,
        "DYN_TCP_RESPONSE_STREAM_HOST": host,
        "DYN_EVENT_PLANE_HOST": host,
        "DYN_SYSTEM_HOST": host,
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(layout.run_dir / "tmp"),
    }
    if layout.redis_server:
        env["AMPD_STATE__URL"] = f"unix://{layout.redis_socket}"
    return env


def _python(module: str, *args: str) -> tuple[str, ...]:
    # -P: the folder the user stands in must not shadow installed modules.
    return (sys.executable, "-P", "-m", module, *args)


def _redis(layout: Layout) -> ProcessSpec:
    options = {
        "port": "0",
        "unixsocket": str(layout.redis_socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "dir": str(layout.run_dir),
        "daemonize": "no",
    }
    argv = [str(layout.redis_server)]
    for key, value in options.items():
        argv += [f"--{key}", value]
    return ProcessSpec("redis", "redis", "redis", tuple(argv), ready_socket=layout.redis_socket)


def _worker(graph: Graph, group: Worker, replicas: range, kv_port: int, layout: Layout, env: Mapping[str, str]) -> ProcessSpec:
    name = f"{group.name}-{replicas[0]}"
    ready = layout.ready_file(name)
    args = [
        "--config",
        str(layout.graph_file),
        "--namespace",
        layout.namespace,
        "--component",
        group.name,
        "--index",
        str(replicas[0]),
    ]
    if len(replicas) > 1:
        args += ["--count", str(len(replicas))]
    args += ["--side-channel-port", str(kv_port), "--ready-file", str(ready)]
    return ProcessSpec(
        name,
        group.name,
        "worker",
        _python("ampd.workers", *args),
        {**env, **(_engine_env(graph.transport.host) if group.engine == "vllm" else {}), **group.env},
        ready,
    )


def _engine_env(host: str) -> dict[str, str]:
    env = {"VLLM_HOST_IP": host, "VLLM_NO_USAGE_STATS": "1"}
    if _is_loopback(host):
        # UCX and Gloo listen on every interface that they are not kept from.
        env |= {"UCX_NET_DEVICES": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    return env


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _frontend(graph: Graph, layout: Layout, env: Mapping[str, str]) -> ProcessSpec:
    front = graph.frontend
    args = ["--http-host", front.host, "--http-port", str(front.port), "--namespace", f"{layout.namespace}-api"]
    argv = _python("dynamo.frontend", *args, "--router-mode", "round-robin")
    # A streaming request that the Coordinator refuses at once is then a 4xx, not a 200 with an error inside the stream.
    # Headers with this prefix reach the Coordinator: x-slo-ttft-ms and x-slo-tpot-ms.
    # A prompt's ids travel to it as one buffer rather than as a Python object each.
    env = {**env, "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS": "1000", "DYN_METADATA_HEADER": "x-slo-", "DYN_TOKEN_IDS_AS_BYTES": "1"}
    return ProcessSpec("frontend", "frontend", "frontend", argv, env, ready_url=f"{base_url(front.host, front.port)}/health")


def _coordinator(index: int, layout: Layout, env: Mapping[str, str]) -> ProcessSpec:
    name = f"coordinator-{index}"
    ready = layout.ready_file(name)
    args = ["--config", str(layout.graph_file), "--namespace", layout.namespace, "--ready-file", str(ready)]
    return ProcessSpec(name, "coordinator", "coordinator", _python("ampd.coordinator", *args), env, ready)


def base_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server bound to `host`."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reach}]:{port}" if ":" in reach else f"http://{reach}:{port}"
