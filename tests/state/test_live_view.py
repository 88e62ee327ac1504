"""A view kept up to date by changes is the view read anew, whatever happened in between."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from redis_server import RedisServer
from state_samples import SETTINGS, entry, worker

from ampd.policy.types import ClusterView
from ampd.state.base import Sample
from ampd.state.redis_store import RedisStore

_graphs = itertools.count()
LASTING = dataclasses.replace(SETTINGS, stale_after_s=600.0, reap_after_s=6000.0, window_s=600.0)


def as_sets(view: ClusterView) -> tuple[set[str], set[str]]:
    return {repr(w) for w in view.prefill}, {repr(w) for w in view.decode}


async def change(store: RedisStore, rng: random.Random, step: int) -> None:
    id = rng.randrange(1, 9)
    match rng.randrange(7):
        case 0 | 1:
            role = rng.choice(["prefill", "decode"])
            await store.put_worker(worker(id, role, f"e{rng.randrange(2)}", running=rng.randrange(9), kv_free=step))
        case 2:
            await store.remove_worker(id)
        case 3:
            await store.enqueue(id, entry(f"t{step}", rng.random()))
        case 4:
            await store.dequeue(id, f"t{rng.randrange(step + 1)}")
        case 5:
            await store.observe([Sample(id, rng.choice(["ttft", "itl"]), rng.random(), 1)])
        case _:
            await store.bind(f"s{step}", id, "e0", 10)


@pytest.mark.parametrize("seed", range(4))
async def test_changes_add_up_to_the_whole(redis_server: RedisServer, seed: int) -> None:
    graph, rng = f"live-{next(_graphs)}", random.Random(seed)
    writer, reader = (RedisStore(redis_server.url, None, graph, LASTING) for _ in range(2))
    await writer.connect()
    await reader.connect()
    compared = 0
    for step in range(250):
        await change(writer, rng, step)
        if rng.random() < 0.3:
            seen = (await reader.open_round("nobody")).view if rng.random() < 0.5 else await reader.view()
            anew = RedisStore(redis_server.url, None, graph, LASTING)
            await anew.connect()
            assert as_sets(seen) == as_sets(await anew.view())
            await anew.close()
            compared += bool(seen.prefill and seen.decode)
    assert compared > 20
    await writer.close()
    await reader.close()


async def test_unchanged_workers_are_not_made_anew(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, None, f"live-{next(_graphs)}", LASTING)
    await store.connect()
    for id in (1, 2, 3):
        await store.put_worker(worker(id))
    before = await store.view()
    assert await store.view() is before
    await store.put_worker(worker(2, running=5))
    after = await store.view()
    assert [w.running for w in after.decode] == [0, 5, 0]
    assert after.decode[0] is before.decode[0]
    assert before.decode[1].running == 0
    await store.close()
