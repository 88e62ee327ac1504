"""The shared connections: replies find their callers, deadlines hold, and a connection that ended is opened again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from redis_server import RedisServer
from state_samples import BIG, SETTINGS, entry, handle, worker
from tls_relay import make_certificate, tls_relay

from ampd.errors import ConfigError, SetupError, StateError
from ampd.state.address import Address
from ampd.state.client import RedisClient, Use
from ampd.state.redis_store import RedisStore

_names = itertools.count()


@pytest.fixture
async def make_client(server: RedisServer) -> AsyncIterator[Callable[..., RedisClient]]:
    made: list[RedisClient] = []

    def make(deadline_s: float = 10.0, max_pending: int = 4096) -> RedisClient:
        made.append(RedisClient(server.url, None, deadline_s, max_pending))
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def test_every_reply_goes_to_its_caller_whoever_is_cancelled(make_client: Callable[..., RedisClient]) -> None:
    client, rng = make_client(), random.Random(7)
    await client.connect("k", "v")
    answered, cancelled = 0, 0

    async def caller(i: int) -> None:
        nonlocal answered, cancelled
        for n in range(40):
            word = f"{i}-{n}-{'x' * rng.randrange(3000)}".encode()
            use = rng.choice([Use.DECISION, Use.CHANGE])
            call = asyncio.create_task(client.command(use, "ECHO", word))
            if rng.random() < 0.3:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                call.cancel()
            try:
                assert await call == word
                answered += 1
            except asyncio.CancelledError:
                cancelled += 1

    await asyncio.gather(*(caller(i) for i in range(50)))
    assert answered + cancelled == 2000
    assert cancelled > 100


async def test_calls_that_missed_their_deadline_leave_the_order_alone(
    make_client: Callable[..., RedisClient], server: RedisServer
) -> None:
    client = make_client(deadline_s=0.05)
    await client.connect("k", "v")
    server.freeze()
    early = await asyncio.gather(*(client.command(Use.DECISION, "ECHO", f"early-{i}") for i in range(20)), return_exceptions=True)
    patient = [asyncio.create_task(client.command(Use.REPORT, "ECHO", f"patient-{i}")) for i in range(20)]
    await asyncio.sleep(0.05)
    server.thaw()
    assert all(isinstance(e, StateError) and e.__cause__ is None and "within 50 ms" in str(e) for e in early)
    assert await asyncio.gather(*patient) == [f"patient-{i}".encode() for i in range(20)]
    for i in range(50):
        with contextlib.suppress(StateError):  # a busy machine
            assert await client.command(Use.DECISION, "ECHO", f"later-{i}") == f"later-{i}".encode()


async def test_a_stall_of_this_process_is_not_taken_for_redis_silence(
    make_client: Callable[..., RedisClient], server: RedisServer
) -> None:
    client, loop = make_client(deadline_s=0.1), asyncio.get_running_loop()
    await client.connect("k", "v")
    ours, other = socket.socketpair()

    def stall() -> None:
        """Another connection's work takes long. The answer arrives meanwhile, and the deadline passes, before sockets are read."""
        loop.remove_reader(ours)
        server.thaw()
        time.sleep(0.3)

    server.freeze()
    loop.add_reader(ours, stall)
    call = asyncio.create_task(client.command(Use.DECISION, "ECHO", "here"))
    await asyncio.sleep(0)
    other.send(b"x")
    assert await call == b"here"
    ours.close()
    other.close()


async def test_time_that_this_process_stood_still_is_given_back(
    make_client: Callable[..., RedisClient], server: RedisServer
) -> None:
    client, loop = make_client(deadline_s=0.3), asyncio.get_running_loop()
    await client.connect("k", "v")
    server.freeze()
    call = asyncio.create_task(client.command(Use.DECISION, "ECHO", "here"))
    await asyncio.sleep(0.01)
    time.sleep(0.6)  # noqa: ASYNC251 - this process's own work
    loop.call_later(0.1, server.thaw)
    assert await call == b"here"


async def test_a_stopped_redis_costs_its_callers_a_bounded_wait_and_its_return_needs_no_help(
    make_client: Callable[..., RedisClient], server: RedisServer
) -> None:
    client = make_client(deadline_s=0.5)
    await client.connect("k", "v")
    server.freeze()
    started = time.monotonic()
    with pytest.raises(StateError, match=r"silent for 2\.0 s"):
        await client.command(Use.REPORT, "ECHO", "x")  # its own deadline is far off
    assert time.monotonic() - started < 20
    server.thaw()
    assert await client.command(Use.CHANGE, "ECHO", "again") == b"again"


async def test_a_connection_that_was_cut_is_opened_again_before_anybody_asks(
    make_client: Callable[..., RedisClient], server: RedisServer
) -> None:
    client = make_client()
    await client.connect("k", "v")
    admin = redis.Redis(unix_socket_path=str(server.socket))
    before = {int(c["id"]) for c in admin.client_list()} - {admin.client_id()}
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for _ in range(500):
        now = {int(c["id"]) for c in admin.client_list()} - {admin.client_id()}
        if len(now) == len(before) and not now & before:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("no new connections")
    assert await client.command(Use.DECISION, "ECHO", "x") == b"x"


async def test_calls_beyond_the_bound_fail_at_once(make_client: Callable[..., RedisClient], server: RedisServer) -> None:
    client = make_client(max_pending=3)
    await client.connect("k", "v")
    server.freeze()
    waiting = [asyncio.create_task(client.command(Use.DECISION, "ECHO", str(i))) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StateError, match=r"owes 3 answers already \(state\.max_pending 3\)"):
        await client.command(Use.DECISION, "ECHO", "4")
    server.thaw()
    assert await asyncio.gather(*waiting) == [b"0", b"1", b"2"]


async def test_what_nobody_waits_for_keeps_its_order_and_survives_forgotten_scripts(server: RedisServer) -> None:
    store = RedisStore(server.url, None, f"soon-{next(_names)}", SETTINGS)
    await store.connect()
    await store.put_worker(worker(1, "prefill"))
    for i in range(50):
        store.enqueue_soon(1, entry(f"t{i}"))
        if i % 2:
            await store.dequeue(1, f"t{i}")
    assert [e.id for e in await store.queue(1)] == [f"t{i}" for i in range(0, 50, 2)]
    redis.Redis(unix_socket_path=str(server.socket)).script_flush()
    store.enqueue_soon(1, entry("after"))
    for _ in range(200):
        if "after" in [e.id for e in await store.queue(1)]:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the entry never arrived")
    server.stop()
    store.enqueue_soon(1, entry("nowhere"))  # raises nothing
    await store.close()


async def handle_comes_back(store: RedisStore) -> None:
    """Session `s` has its handle again, a moment later."""
    for _ in range(300):
        found = (await store.open_round("s")).session
        assert found is not None
        if found.handle is not None:
            break
        await asyncio.sleep(0.01)
    assert found.handle == handle()


@pytest.mark.parametrize("turns", range(8))
async def test_an_opening_cancelled_at_any_moment_gives_its_handle_back(server: RedisServer, turns: int) -> None:
    store = RedisStore(server.url, None, f"moment-{next(_names)}", SETTINGS)
    await store.connect()
    row = replace(await store.bind("s", BIG, "e1", 0), handle=handle())
    await store.close_round("s", row, b"ledger")
    call = asyncio.create_task(store.open_round("s"))
    for _ in range(turns):
        await asyncio.sleep(0 if turns % 2 else 0.0005)
    call.cancel()
    try:
        opened = (await call).session
        assert opened is not None
        assert opened.handle == handle()  # it was quicker
    except asyncio.CancelledError:
        await handle_comes_back(store)
    await store.close()


async def test_an_opening_cancelled_between_its_reply_and_its_turn_gives_its_handle_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(server.url, None, f"moment-{next(_names)}", SETTINGS)
    await store.connect()
    row = replace(await store.bind("s", BIG, "e1", 0), handle=handle())
    await store.close_round("s", row, b"ledger")
    connection = store._client._decisions.connection
    assert connection is not None
    send = connection.send

    def send_and_cancel(*args: Any) -> asyncio.Future[list[Any]]:
        future = send(*args)
        future.add_done_callback(lambda _: call.cancel())
        return future

    monkeypatch.setattr(connection, "send", send_and_cancel)
    call = asyncio.create_task(store.open_round("s"))
    with pytest.raises(asyncio.CancelledError):
        await call
    monkeypatch.undo()
    await handle_comes_back(store)
    await store.close()


async def test_tls_checks_who_answers(redis_server: RedisServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_certificate(other)
    async with tls_relay(redis_server.socket, tmp_path) as address:
        for options in ("", f"?ssl_ca_certs={other / 'redis.crt'}"):
            store = RedisStore(f"rediss://{address}{options}", None, "tls", SETTINGS)
            with pytest.raises(SetupError, match=r"no TLS with this Redis .*ssl_ca_certs in the URL"):
                await store.connect()
            await store.close()
        port = address.rpartition(":")[2]
        wrong_name = RedisStore(f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'redis.crt'}", None, "tls", SETTINGS)
        with pytest.raises(SetupError, match="no TLS with this Redis"):
            await wrong_name.connect()
        await wrong_name.close()
        unchecked = RedisStore(f"rediss://{address}?ssl_cert_reqs=none", None, "tls", SETTINGS)
        await unchecked.connect()
        await unchecked.close()


async def test_a_server_that_is_no_redis_is_one_clear_line() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, "g", SETTINGS)
        with pytest.raises(SetupError, match="cannot reach Redis .*not the answer of a Redis"):
            await store.connect()
        await store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?pool=3", r"state\.url redis://h: unknown option 'pool'; a redis:// URL knows db"),
        ("redis://h?ssl_ca_certs=x", "unknown option 'ssl_ca_certs'"),
        ("rediss://u:secret@h?ssl_ca_certs=/none", r"state\.url rediss://h: certificates cannot be used .*check ssl_ca_certs"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs='maybe'; use none, optional or required"),
        ("redis://h:port", "use redis://, rediss:// or unix://"),
        ("unix://", "needs the path of a socket"),
    ],
)
def test_urls_that_say_nothing_usable(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as e:
        Address.parse(url)
    assert "secret" not in str(e.value)


def test_what_a_url_says() -> None:
    address = Address.parse("redis://user:pa%3Ass@h:7000/3", None)
    assert (address.host, address.port, address.db, address.username, address.password) == ("h", 7000, 3, "user", "pa:ss")
    assert address.greeting() == [("AUTH", "user", "pa:ss"), ("SELECT", 3)]
    assert Address.parse("unix:///run/r.sock?db=2", "pw").greeting() == [("AUTH", "pw"), ("SELECT", 2)]
    assert Address.parse("redis://h").greeting() == [("PING",)]
