"""Transfer parameters and the facts that come back: plain data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ampd.workers.engines.base import EngineJob, KvFacts
from ampd.workers.kv.facts import FactBook
from ampd.workers.kv.params import FACTS, PIN, RELEASE, facts_dict, facts_of, outgoing, readable, reused_tokens, trimmed, unread

BLOCK = 32


def pin(tokens: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(-(-tokens // BLOCK)))],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": tokens,
        "tp_size": 1,
        **more,
    }


def job(kind: Any, **more: Any) -> EngineJob:
    return EngineJob(id="j", kind=kind, token_ids=range(100), **more)


def test_a_prefill_reads_the_leading_blocks_of_its_source() -> None:
    params = outgoing(job("prefill", source=pin(), source_tokens=64, pin=False, release=["old"]), BLOCK)
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    assert (params["remote_block_ids"], params["remote_num_tokens"]) == ([[0, 1]], 64)
    assert (params[PIN], params[RELEASE]) == (False, ["old"])


def test_a_decode_reads_its_source_whole() -> None:
    params = outgoing(job("decode", source=pin(), source_tokens=64), BLOCK)
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (False, True)
    assert len(params["remote_block_ids"][0]) == 4


def test_a_local_round_says_neither() -> None:
    params = outgoing(job("decode"), BLOCK)
    assert (params["do_remote_decode"], params["do_remote_prefill"], params[PIN]) == (False, False, True)


@pytest.mark.parametrize(
    ("tokens", "blocks", "kept"), [(0, 0, 0), (31, 0, 0), (32, 1, 32), (95, 2, 64), (100, 4, 100), (500, 4, 100)]
)
def test_trimming_keeps_whole_blocks(tokens: int, blocks: int, kept: int) -> None:
    got = trimmed(pin(), tokens, BLOCK)
    assert (len(got["remote_block_ids"][0]), got["remote_num_tokens"]) == (blocks, kept)


def test_several_cache_groups_are_read_whole_or_not_at_all() -> None:
    source = pin(remote_block_ids=[[0, 1, 2, 3], [3]])
    assert trimmed(source, 64, BLOCK)["remote_block_ids"] == [[], []]
    assert trimmed(source, 100, BLOCK)["remote_block_ids"] == [[0, 1, 2, 3], [3]]


@pytest.mark.parametrize(
    "spoil",
    [
        {"remote_num_tokens": 99},
        {"remote_num_tokens": 101},
        {"remote_block_ids": [[1, 2]]},
        {"remote_block_ids": []},
        {"remote_block_ids": None},
        {"remote_port": None},
        {"remote_engine_id": None},
    ],
)
def test_a_decode_source_must_be_complete_and_of_this_prompt(spoil: dict[str, Any]) -> None:
    assert readable(job("decode", source=pin()), BLOCK)
    assert not readable(job("decode", source=pin(**spoil)), BLOCK)


def test_a_prefill_source_may_hold_more_or_less_than_the_prompt() -> None:
    assert readable(job("prefill", source=pin(50)), BLOCK)
    assert readable(job("prefill", source=pin(200)), BLOCK)
    assert not readable(job("prefill"), BLOCK)


def test_ending_a_pin_unread_needs_its_address() -> None:
    ending = unread(pin())
    assert ending is not None
    assert (ending["remote_block_ids"], ending["remote_num_tokens"], ending[PIN]) == ([[]], 0, False)
    assert unread(pin(remote_host=None)) is None


def test_facts_survive_the_wire() -> None:
    facts = KvFacts(read_tokens=64, cached_tokens=32, read_s=0.5, read_started_at=1.0, read_ended_at=1.5)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode({FACTS: facts_dict(facts)}))
    assert facts_of(wire) == facts
    assert reused_tokens(wire) == 96
    assert facts_of(None) == facts_of({}) == KvFacts()
    assert reused_tokens(None) is None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_read_is_timed_from_its_start_to_its_end() -> None:
    book = FactBook(Clock())
    book.looked_up("a", 32)
    book.reading("a", 64)
    book.received(["a", "stranger"], [])
    book.computing(["a"])
    book.computing(["a"])
    assert book.take("a") == KvFacts(
        read_tokens=64, cached_tokens=32, read_s=1.0, read_started_at=1.0, read_ended_at=2.0, compute_started_at=3.0
    )
    assert len(book) == 0


def test_a_failed_read_counts_nothing_as_read() -> None:
    book = FactBook(Clock())
    book.looked_up("a", 0)
    book.reading("a", 64)
    book.received(["a"], ["a"])
    book.looked_up("a", 0)
    facts = book.take("a")
    assert (facts.read_tokens, facts.read_failed) == (0, True)


def test_a_preemption_does_not_turn_the_own_work_into_a_cache_hit() -> None:
    book = FactBook(Clock())
    book.looked_up("a", 32)
    book.computing(["a"])
    book.looked_up("a", 96)
    assert book.take("a").cached_tokens == 32


def test_an_unknown_request_has_no_facts() -> None:
    assert FactBook(Clock()).take("a") == KvFacts()
