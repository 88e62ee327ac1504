"""Time of measuring a prompt's history, and the memory a session takes: `python -m benchmarks.ledger`.

`check` compares a prompt of so many tokens, plus an increment, with the session's own ledger, as every round's opening does; `grow`
adds the increment at the round's end; `build` makes a ledger from nothing. Memory is that of a session in a process's own store
(row, handle, ledger), by tracemalloc. `benchmarks.routing` states what Redis keeps.
"""

from __future__ import annotations

import asyncio
import os
import random
import tracemalloc
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console, make_table
from ampd.ledger import DIGEST_SIZE, build, grow, match
from ampd.messages import Handle, pack_params
from ampd.state.memory import MemoryStore
from benchmarks.timing import machine, timed

_VOCABULARY, _INCREMENT, _SESSIONS = 128_000, 300, 50


def measure(tokens: int, block_size: int, count: int) -> dict[str, Any]:
    """The row of one prompt length."""
    rng = random.Random(tokens)
    prompt = [rng.randrange(_VOCABULARY) for _ in range(tokens + _INCREMENT)]
    ledger = build(prompt[:tokens], block_size)
    matched = match(ledger, prompt, block_size)
    if matched.tokens != tokens // block_size * block_size:
        raise AssertionError(f"the ledger vouches for {matched.tokens} of {tokens} tokens")
    more = prompt[matched.tokens :]
    check, p99 = timed([partial(match, ledger, prompt, block_size)] * count)
    grown, _ = timed([partial(grow, ledger, matched, more, block_size)] * count)
    built, _ = timed([partial(build, prompt, block_size)] * max(3, count // 10))
    return {
        "tokens": tokens,
        "p50_ms": round(1e3 * check, 4),
        "p99_ms": round(1e3 * p99, 4),
        "grow_p50_ms": round(1e3 * grown, 4),
        "build_p50_ms": round(1e3 * built, 4),
        "ledger_bytes": len(ledger),
        "memory_bytes": asyncio.run(memory_bytes(tokens, block_size)),
    }


async def memory_bytes(tokens: int, block_size: int) -> int:
    """Bytes of one session in a process's own store, averaged over some."""
    store = MemoryStore()
    tracemalloc.start()
    for i in range(_SESSIONS):
        session = f"session-{i:024d}"
        await store.open_round(session)
        row = await store.bind(session, 2**60 + i, f"epoch-{i:026d}", tokens)
        params = {"remote_block_ids": [list(range(1000, 1000 + tokens // block_size))], "remote_request_id": f"request-{i}"}
        handle = Handle(row.worker, row.epoch, session, f"pin-{i}", tokens, os.urandom(16).hex(), 2e9, pack_params(params))
        await store.close_round(
            session, replace(row, round=1, tokens=tokens, handle=handle), os.urandom(tokens // block_size * DIGEST_SIZE)
        )
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used // _SESSIONS


@click.command()
@click.option("--tokens", multiple=True, type=click.IntRange(min=32), default=(2048, 8192, 32768, 131072), show_default=True)
@click.option("--block-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--checks", "count", type=click.IntRange(min=3), default=200, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(tokens: tuple[int, ...], block_size: int, count: int, json_file: str | None) -> None:
    """Measure the ledger."""
    rows = [measure(number, block_size, count) for number in tokens]
    console = make_console(stderr=json_file == "-")
    table = make_table(f"ledger, blocks of {block_size} tokens, {_INCREMENT} new tokens: medians, and bytes of a session")
    for name in ("tokens", "check ms", "p99 ms", "grow ms", "build ms", "ledger bytes", "session in memory"):
        table.add_column(name, justify="right")
    for row in rows:
        times = [f"{row[key]:.3f}" for key in ("p50_ms", "p99_ms", "grow_p50_ms", "build_p50_ms")]
        table.add_row(str(row["tokens"]), *times, str(row["ledger_bytes"]), str(row["memory_bytes"]))
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
