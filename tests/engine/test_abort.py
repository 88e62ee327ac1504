"""A job can be stopped in every phase: nothing stays held, the transfer under way ends by itself, and the next round is right."""

from __future__ import annotations

import asyncio

from engine_pair import Pair, Result, Session, frozen, prompt, request, run, until


async def begun(pair: Pair, seed: int, length: int = 600) -> Session:
    """A session with one local round, its history pinned on the decode worker."""
    session = Session(pair)
    await session.round("local", prompt(length, seed))
    return session


async def goes_on(session: Session, seed: int) -> None:
    """The session's next round, without the history that the stopped one used up, is right; then nothing is held."""
    session.handle = None
    token_ids = session.tokens + prompt(40, seed)
    tokens, _, _ = await session.round("remote", prompt(40, seed))
    right = await run(
        session.pair.decode, kind="decode", token_ids=token_ids, request=request(8), pin=False, cache_salt=f"right-{seed}"
    )
    assert tokens == right.tokens
    await session.close()
    await session.pair.idle()


def cancelled(result: Result) -> None:
    assert result.last.output["finish_reason"] == "cancelled"
    assert result.last.ref is None


async def test_waiting_on_the_prefill_worker(pair: Pair) -> None:
    session = await begun(pair, 70)
    session.tokens += prompt(100, 71)
    ahead = [asyncio.create_task(run(pair.prefill, kind="prefill", token_ids=prompt(6000, 72 + i))) for i in range(2)]
    await until(lambda: pair.prefill.load().running == 1, "the first job computes")
    job = asyncio.create_task(session.prefill(session.handle, id="stop-me"))
    await until(lambda: pair.prefill.load().waiting == 2, "the job waits behind another")
    await pair.prefill.abort("stop-me")
    cancelled(await job)
    for task in ahead:
        await pair.prefill.release([(await task).last.ref or ""])
    await pair.idle()
    await goes_on(session, 74)


async def test_reading_on_the_prefill_worker(pair: Pair) -> None:
    warm = await begun(pair, 75)
    await warm.round("remote", prompt(40, 76))  # the engines have shaken hands
    await warm.close()
    session = await begun(pair, 77, 3000)
    session.tokens += prompt(100, 78)
    with frozen(pair.decode):
        job = asyncio.create_task(session.prefill(session.handle, id="stop-me"))
        await until(lambda: pair.prefill.load().kv_used > 0, "the blocks to read into are held")
        await pair.prefill.abort("stop-me")
        cancelled(await job)
        await asyncio.sleep(0.5)
        assert pair.prefill.load().kv_used > 0, "blocks that a transfer writes to must not be given away"
    await pair.idle()
    await goes_on(session, 79)


async def test_computing_on_the_prefill_worker(pair: Pair) -> None:
    session = await begun(pair, 80)
    session.tokens += prompt(6000, 81)
    job = asyncio.create_task(session.prefill(session.handle, id="stop-me"))
    await until(lambda: pair.prefill.load().kv_used > 1500, "the increment is being computed")
    await pair.prefill.abort("stop-me")
    cancelled(await job)
    await pair.idle()
    await goes_on(session, 82)


async def test_prefilled_but_unread(pair: Pair) -> None:
    session = await begun(pair, 83)
    session.tokens += prompt(100, 84)
    result = await session.prefill(session.handle)
    await pair.prefill.release([result.last.ref or ""])
    await pair.idle()
    await goes_on(session, 85)


async def test_transferring_on_the_decode_worker(pair: Pair) -> None:
    session = await begun(pair, 86)
    session.tokens += prompt(3000, 87)
    on_p = await session.prefill(session.handle)
    await until(lambda: pair.decode.load().kv_used == 0, "the history has been read")
    with frozen(pair.prefill):
        job = asyncio.create_task(
            run(
                pair.decode,
                id="stop-me",
                kind="decode",
                token_ids=session.tokens,
                request=request(8),
                source=on_p.last.params,
                cache_salt=session.salt,
            )
        )
        await until(lambda: pair.decode.load().kv_used > 0, "the blocks to read into are held")
        await pair.decode.abort("stop-me")
        cancelled(await job)
    await pair.idle()
    await goes_on(session, 88)


async def test_decoding(pair: Pair) -> None:
    session = await begun(pair, 89)
    job = asyncio.create_task(
        run(pair.decode, id="stop-me", kind="decode", token_ids=session.tokens, request=request(4000), cache_salt=session.salt)
    )
    await until(lambda: pair.decode.load().running == 1, "it decodes")
    await pair.decode.abort("stop-me")
    cancelled(await job)
    assert session.handle is not None
    await pair.decode.release([session.handle.ref or ""])
    await pair.idle()
    await goes_on(session, 90)


async def test_an_abort_that_meets_the_end_of_its_job_leaves_no_pin(pair: Pair) -> None:
    """The job may have finished and be pinned already, its result on the way."""
    for i in range(8):
        job = asyncio.create_task(
            run(pair.decode, id=f"race-{i}", kind="decode", token_ids=prompt(64, 191 + i), request=request(1))
        )
        await asyncio.sleep(0.003 * i)
        known = f"race-{i}" in pair.decode._jobs
        await pair.decode.abort(f"race-{i}")
        result = await job
        assert not (known and result.last.ref)
        if result.last.ref is not None:
            await pair.decode.release([result.last.ref])
    await pair.idle()


async def test_a_cancelled_reader_stops_its_job(pair: Pair) -> None:
    job = asyncio.create_task(run(pair.decode, kind="decode", token_ids=prompt(64, 97), request=request(4000)))
    await until(lambda: pair.decode.load().running == 1, "it decodes")
    job.cancel()
    await asyncio.wait({job})
    assert job.cancelled()
    await until(lambda: pair.decode.load().running == 0, "the engine has stopped it")


async def test_a_preempted_prefill_goes_on(pair: Pair) -> None:
    """Stock vLLM offers the history again after a preemption, reads nothing, and the request waits for ever."""
    session = await begun(pair, 98)
    increment = prompt(4000, 99)
    session.tokens += increment
    job = asyncio.create_task(session.prefill(session.handle))
    await until(lambda: pair.prefill.load().kv_used > 1500, "the increment is being computed")
    await pair.prefill._llm.reset_prefix_cache(reset_running_requests=True)
    on_p = await asyncio.wait_for(job, 30)
    result = await run(pair.decode, kind="decode", token_ids=session.tokens, request=request(8), source=on_p.last.params, pin=False)
    right = await run(pair.decode, kind="decode", token_ids=session.tokens, request=request(8), pin=False, cache_salt="right-99")
    assert result.tokens == right.tokens
