"""What `ampd.workers.engines.base` promises, kept by every engine: the vLLM pair, and simulated ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contract_pairs import sim_graph, sim_pair
from engine_pair import BLOCK, Pair, Result, Session, prompt, request, run, until

from ampd.errors import RequestError, WorkerError
from ampd.workers.engines.base import EngineJob, KvFacts

LONG = 3000


@pytest.fixture(scope="session")
async def sims(tiny_model: Path) -> AsyncIterator[Pair]:
    async with sim_pair(sim_graph(tiny_model)) as pair:
        yield pair


@pytest.fixture(scope="session")
async def housemates(tiny_model: Path) -> AsyncIterator[Pair]:
    async with sim_pair(sim_graph(tiny_model), one_process=True) as pair:
        yield pair


@pytest.fixture(params=["sim", "sim-one-process", "vllm"], scope="session")
def anyones(request: pytest.FixtureRequest) -> Pair:
    fixture = {"sim": "sims", "sim-one-process": "housemates", "vllm": "engines"}[request.param]
    found: Pair = request.getfixturevalue(fixture)
    return found


@pytest.fixture
async def both(anyones: Pair) -> AsyncIterator[Pair]:
    """Engines that hold no KV before and after: whatever a test pins has to end."""
    yield anyones
    await anyones.idle()


def facts(result: Result | None) -> KvFacts:
    assert result is not None
    assert result.last.kv is not None
    return result.last.kv


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK


async def plain(pair: Pair, tokens: list[int], count: int = 8) -> list[int]:
    """The right answer: computed in one piece, on its own part of the prefix cache."""
    result = await run(
        pair.decode, kind="decode", token_ids=tokens, request=request(count), pin=False, cache_salt=f"plain-{time.monotonic_ns()}"
    )
    return result.tokens


async def test_a_prefill_gives_one_token_and_pins_the_prompt(both: Pair) -> None:
    result = await run(both.prefill, kind="prefill", token_ids=prompt(300, 900))
    assert (len(result.tokens), result.last.pinned_tokens, result.last.output["finish_reason"]) == (1, 300, "length")
    assert result.last.expires_at > time.time() + 5
    await until(lambda: both.prefill.load().kv_used == blocks(300), "the pin holds the prompt's blocks")
    await both.prefill.release([result.last.ref or ""])


async def test_a_decode_job_ends_at_max_tokens_and_pins_all_but_the_last(both: Pair) -> None:
    result = await run(both.decode, kind="decode", token_ids=prompt(300, 901), request=request(30))
    assert (len(result.tokens), result.last.pinned_tokens, result.last.output["finish_reason"]) == (30, 329, "length")
    usage = result.last.output["completion_usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (300, 30, 330)
    assert sum(o.tokens for o in result.outputs) == 30
    await until(lambda: both.decode.load().kv_used == blocks(329), "the pin holds prompt and answer")
    await both.decode.release([result.last.ref or ""])


async def test_without_a_pin_nothing_is_kept(both: Pair) -> None:
    result = await run(both.decode, kind="decode", token_ids=prompt(300, 902), request=request(3), pin=False)
    assert (result.last.ref, result.last.params, result.last.pinned_tokens) == (None, None, 0)


@pytest.mark.parametrize("paths", ["rr", "lr", "rl", "ll"])
async def test_rounds_read_only_what_is_missing_and_answer_right(both: Pair, paths: str) -> None:
    session = Session(both)
    await session.round("remote" if paths[0] == "r" else "local", prompt(500, 903), 8)
    held = session.handle.pinned_tokens // BLOCK * BLOCK if session.handle else 0
    answer, on_d, on_p = await session.round("remote" if paths[1] == "r" else "local", prompt(200, 904), 8)
    assert answer == await plain(both, session.tokens[: -len(answer)])
    # The decode worker holds the history in its cache, and reads or computes the rest.
    assert facts(on_d).cached_tokens == held
    assert facts(on_d).read_tokens == (708 - held if on_p else 0)
    if on_p is not None:
        known = 500 // BLOCK * BLOCK if paths[0] == "r" else 0
        assert facts(on_p).cached_tokens == known
        wanted = held - known
        assert facts(on_p).read_tokens == (wanted if wanted >= 32 else 0)
        assert on_d.last.output["completion_usage"]["prompt_tokens_details"] == {
            "cached_tokens": facts(on_p).cached_tokens + facts(on_p).read_tokens
        }
    await session.close()


async def test_a_source_that_is_read_ends_on_its_holder(both: Pair) -> None:
    session = Session(both)
    await session.round("local", prompt(640, 905))
    session.tokens += prompt(64, 906)
    result = await session.prefill(session.handle)
    assert facts(result).read_tokens > 600
    await until(lambda: both.decode.load().kv_used == 0, "the read has ended the history's pin", 5)
    await both.prefill.release([result.last.ref or ""])


async def test_a_prefix_is_found_in_the_cache_unless_that_is_reset_or_salted(both: Pair) -> None:
    tokens = prompt(400, 907)
    cached = []
    for salt in ("a", "a", "b", None):
        if salt is None:
            await both.decode.reset_prefix_cache()
            salt = "a"
        result = await run(both.decode, kind="decode", token_ids=tokens, request=request(2), pin=False, cache_salt=salt)
        cached.append(facts(result).cached_tokens)
    assert cached == [0, 384, 0, 0]


async def test_a_pinned_history_outlives_a_reset(both: Pair) -> None:
    session = Session(both)
    await session.round("local", prompt(320, 908), 1)
    await both.decode.reset_prefix_cache()
    _, result, _ = await session.round("local", prompt(32, 909))
    assert facts(result).cached_tokens == 320
    await session.close()


async def test_releases_by_name_by_the_next_job_and_of_nothing(both: Pair) -> None:
    first = await run(both.decode, kind="decode", token_ids=prompt(100, 910), request=request(2))
    second = await run(both.decode, kind="decode", token_ids=prompt(100, 911), request=request(2), release=[first.last.ref])
    await until(lambda: both.decode.load().kv_used == blocks(101), "the following job has released the pin")
    await both.decode.release(["unknown", second.last.ref or "", second.last.ref or ""])
    await both.decode.release([second.last.ref or ""])


@pytest.mark.parametrize(
    "bad", [{"max_tokens": 4, "min_tokens": 9}, {"max_tokens": 0}], ids=lambda stop: ",".join(f"{k}={v}" for k, v in stop.items())
)
async def test_a_refused_job_uses_up_its_source_and_its_releases(both: Pair, bad: dict[str, int]) -> None:
    held = await run(both.decode, kind="decode", token_ids=prompt(100, 912), request=request(2))
    on_p = await run(both.prefill, kind="prefill", token_ids=prompt(200, 913))
    job: dict[str, Any] = {"source": on_p.last.params, "source_tokens": 200, "release": [held.last.ref]}
    with pytest.raises(RequestError, match=list(bad)[-1]):
        await run(both.decode, kind="decode", token_ids=prompt(200, 913), request=request(4, stop_conditions=bad), **job)


async def test_a_prompt_longer_than_the_model_takes_is_refused(both: Pair) -> None:
    with pytest.raises(RequestError):
        await run(both.decode, kind="decode", token_ids=prompt(8192, 914), request=request(1))


async def test_a_source_of_another_prompt_is_not_read_and_ends(both: Pair) -> None:
    on_p = await run(both.prefill, kind="prefill", token_ids=prompt(200, 915))
    tokens = prompt(232, 916)
    right = await plain(both, tokens)
    result = await run(both.decode, kind="decode", token_ids=tokens, request=request(8), source=on_p.last.params, pin=False)
    assert (result.tokens, facts(result).read_tokens) == (right, 0)


async def test_two_jobs_of_one_name_are_one_too_many(both: Pair) -> None:
    job = asyncio.create_task(run(both.decode, id="same", kind="decode", token_ids=prompt(50, 917), request=request(40), pin=False))
    await asyncio.sleep(0)
    with pytest.raises(WorkerError, match="same"):
        await run(both.decode, id="same", kind="decode", token_ids=prompt(50, 918), request=request(1))
    assert len((await job).tokens) == 40


async def test_a_stop_token_ends_an_answer(both: Pair) -> None:
    tokens = prompt(100, 919)
    free = await plain(both, tokens, 12)
    stop = request(12, stop_conditions={"max_tokens": 12, "stop_token_ids": [free[5]]})
    result = await run(both.decode, kind="decode", token_ids=tokens, request=stop, pin=False)
    assert result.tokens == free[: free.index(free[5]) + 1]
    assert result.last.output["finish_reason"] == "stop"


@pytest.mark.parametrize("phase", ["submitted", "prefilling", "decoding"])
async def test_an_abort_in_any_phase_leaves_nothing(both: Pair, phase: str) -> None:
    long = phase == "prefilling"
    got: list[int] = []

    async def play() -> Result:
        result = Result()
        tokens = prompt(7000 if long else 100, 920)
        async for output in both.decode.generate(EngineJob(id="gone", kind="decode", token_ids=tokens, request=request(1000))):
            result.outputs.append(output)
            got.extend(output.output["token_ids"])
        return result

    job = asyncio.create_task(play())
    if phase == "submitted":
        await asyncio.sleep(0)
    elif long:
        await until(lambda: both.decode.load().kv_used > 0, "the prompt is being computed")
    else:
        await until(lambda: len(got) > 3, "it streams")
    await both.decode.abort("gone")
    result = await asyncio.wait_for(job, 30)
    assert (result.last.finished, result.last.ref, result.last.output["finish_reason"]) == (True, None, "cancelled")
    assert len(result.tokens) < 1000


async def test_an_aborted_prefill_ends_the_history_that_it_was_to_read(both: Pair) -> None:
    session = Session(both)
    await session.round("local", prompt(2000, 921), 1)
    session.tokens += prompt(2000, 922)
    job = asyncio.create_task(session.prefill(session.handle, id="reading"))
    await until(lambda: both.prefill.load().kv_used > 0, "it has its blocks")
    await both.prefill.abort("reading")
    result = await asyncio.wait_for(job, 30)
    assert result.last.ref is None


async def test_aborting_what_is_unknown_or_over_is_nothing(both: Pair) -> None:
    result = await run(both.decode, id="over", kind="decode", token_ids=prompt(100, 923), request=request(2))
    await both.decode.abort("over")
    await both.decode.abort("unknown")
    await both.decode.finish("over")
    await both.decode.finish("unknown")
    await asyncio.sleep(0.3)
    assert both.decode.load().kv_used == blocks(101), "the pin stands"
    await both.decode.release([result.last.ref or ""])


async def test_finish_ends_a_round_at_its_next_token_with_its_pin(both: Pair) -> None:
    session = Session(both)
    tokens, result, _ = await session.round("local", prompt(200, 924), LONG, 5)
    assert 5 < len(tokens) < LONG / 4
    assert (result.last.output["finish_reason"], result.last.pinned_tokens) == ("length", 200 + len(tokens) - 1)
    answer, _, on_p = await session.round("remote", prompt(50, 925))
    assert facts(on_p).read_tokens > 190
    assert answer == await plain(both, session.tokens[: -len(answer)])
    await session.close()


async def test_finish_before_the_first_token_is_an_abort(both: Pair) -> None:
    job = asyncio.create_task(run(both.decode, id="early", kind="decode", token_ids=prompt(6000, 926), request=request(LONG)))
    await until(lambda: both.decode.load().kv_used > 0, "the prompt is being computed")
    await both.decode.finish("early")
    result = await asyncio.wait_for(job, 30)
    assert (result.tokens, result.last.output["finish_reason"], result.last.ref) == ([], "cancelled", None)


async def test_several_choices(both: Pair) -> None:
    ask = request(6, sampling_options={"n": 3, "temperature": 1.0, "seed": 7})
    result = await run(both.decode, kind="decode", token_ids=prompt(100, 927), request=ask, pin=False)
    choices = [[t for o in result.outputs if o.output["index"] == i for t in o.output["token_ids"]] for i in range(3)]
    assert [len(tokens) for tokens in choices] == [6, 6, 6]
    assert len({tuple(tokens) for tokens in choices}) == 3


async def test_a_decode_worker_can_prefill_for_another(both: Pair) -> None:
    """A deflected prefill: its engine pins the prompt, and a read by the round's own worker ends that."""
    tokens = prompt(400, 928)
    right = await plain(both, tokens)
    on_other = await run(both.decode, kind="prefill", token_ids=tokens)
    assert on_other.last.pinned_tokens == 400
    # The prefill engine plays the bound decode worker.
    result = await run(
        both.prefill, kind="decode", token_ids=tokens, request=request(8), source=on_other.last.params, source_tokens=400, pin=False
    )
    assert (result.tokens, facts(result).read_tokens) == (right, 400)


async def test_the_load_counts_what_was_written(both: Pair) -> None:
    before = both.prefill.load().kv_written
    result = await run(both.prefill, kind="prefill", token_ids=prompt(320, 929))
    await until(lambda: both.prefill.load().kv_written - before >= 320, "320 tokens more")
    assert both.prefill.load().kv_written - before <= 320 + BLOCK
    await both.prefill.release([result.last.ref or ""])
