"""The plan: pure, from a graph to processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from graphs import make_graph

from ampd.launch.child import LINGER_S
from ampd.launch.plan import GRACE_S, Layout, base_url, components, plan, private_discovery, processes

RUN = Path("/run-dir")


def layout(workers: int, redis_server: Path | None = Path("/bin/redis-server")) -> Layout:
    return Layout(RUN, "ns", redis_server, list(range(5000, 5000 + workers)), private_discovery(RUN))


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_processes_and_their_order() -> None:
    groups = [{"name": "pre", "role": "prefill", "replicas": 2}, {"name": "dec", "role": "decode"}]
    graph = make_graph(Path("/m"), groups, coordinator={"replicas": 2})
    names = [spec.name for spec in plan(graph, layout(3))]
    assert names == ["redis", "pre-0", "pre-1", "dec-0", "frontend", "coordinator-0", "coordinator-1"]
    assert components(graph) == ["redis", "pre", "dec", "frontend", "coordinator"]


def test_worker_arguments_and_ports_of_their_own() -> None:
    groups = [{"name": "pre", "role": "prefill", "replicas": 2}, {"name": "dec", "role": "decode", "env": {"OMP_NUM_THREADS": "1"}}]
    specs = {spec.name: spec for spec in plan(make_graph(Path("/m"), groups), layout(3))}
    second = specs["pre-1"].argv
    assert (option(second, "--component"), option(second, "--index"), option(second, "--namespace")) == ("pre", "1", "ns")
    assert option(second, "--ready-file") == str(specs["pre-1"].ready_file) == "/run-dir/ready/pre-1"
    ports = [option(specs[name].argv, "--side-channel-port") for name in ("pre-0", "pre-1", "dec-0")]
    assert ports == ["5000", "5001", "5002"]
    assert specs["dec-0"].env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in specs["pre-0"].env


def test_frontend_is_scoped_to_the_coordinators_namespace() -> None:
    graph = make_graph(Path("/m"), frontend={"host": "127.0.0.1", "port": 8001})
    frontend = next(spec for spec in plan(graph, layout(2)) if spec.name == "frontend")
    assert option(frontend.argv, "--namespace") == "ns-api"
    assert option(frontend.argv, "--http-port") == "8001"
    assert frontend.ready_url == "http://127.0.0.1:8001/health"


def test_redis_listens_on_its_socket_only() -> None:
    redis = plan(make_graph(Path("/m")), layout(2))[0]
    assert (option(redis.argv, "--port"), option(redis.argv, "--unixsocket")) == ("0", "/run-dir/redis.sock")


def test_a_redis_of_the_users_own() -> None:
    graph = make_graph(Path("/m"), state={"url": "redis://h:1"})
    specs = plan(graph, layout(2, redis_server=None))
    assert "redis" not in [spec.name for spec in specs]
    assert all("AMPD_STATE__URL" not in spec.env for spec in specs)


def test_a_stop_fits_in_fifteen_seconds() -> None:
    assert sum(GRACE_S.values()) + 2 * LINGER_S <= 15


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("::1", "http://[::1]:1")],
)
def test_base_url(host: str, url: str) -> None:
    assert base_url(host, 1) == url


def test_engines_are_kept_to_loopback_unless_peers_are_elsewhere() -> None:
    def env(host: str) -> Mapping[str, str]:
        graph = make_graph(Path("/m"), transport={"host": host})
        return next(spec.env for spec in plan(graph, layout(2)) if spec.name == "decode-0")

    assert (env("127.0.0.1")["UCX_NET_DEVICES"], env("localhost")["GLOO_SOCKET_IFNAME"]) == ("lo", "lo")
    assert env("10.0.0.1")["DYN_TCP_RPC_HOST"] == "10.0.0.1"
    assert not {"UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME"} & set(env("10.0.0.1"))


def test_processes_of_our_own_have_a_metrics_port_each() -> None:
    specs = plan(make_graph(Path("/m")), replace(layout(2), metrics_ports=(21001, 21002, 21003)))
    ports = {spec.name: (spec.metrics_port, spec.env.get("DYN_SYSTEM_PORT")) for spec in specs if spec.kind != "redis"}
    assert ports == {
        "prefill-0": (21001, "21001"),
        "decode-0": (21002, "21002"),
        "frontend": (None, None),
        "coordinator-0": (21003, "21003"),
    }


def test_simulated_workers_share_processes() -> None:
    sims = {"engine": "sim", "sim": {"per_process": 3}}
    groups = [{"name": "pre", "role": "prefill", "replicas": 7, **sims}, {"name": "dec", "role": "decode", "replicas": 2, **sims}]
    graph = make_graph(Path("/m"), groups)
    specs = {spec.name: spec.argv for spec in plan(graph, layout(4)) if spec.kind == "worker"}
    assert list(specs) == ["pre-0", "pre-3", "pre-6", "dec-0"]
    assert [option(specs[name], "--count") for name in ("pre-0", "pre-3", "dec-0")] == ["3", "3", "2"]
    assert "--count" not in specs["pre-6"]
    assert [len(replicas) for replicas in processes(graph.workers[0])] == [3, 3, 1]
