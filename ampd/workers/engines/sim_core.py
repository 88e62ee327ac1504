"""The inside of a simulated engine: its jobs' way through the batch, their reads and pins, and the passing of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from ampd.workers.engines.base import EngineOutput
from ampd.workers.engines.sim_batch import Batch, Step
from ampd.workers.engines.sim_job import SimJob, cancelled
from ampd.workers.engines.sim_pins import SimPins
from ampd.workers.engines.sim_read import Reader, unusable

# A loop that is late catches up by this much at most: a busy machine may stretch steps, never pile them up.
_LAG_S = 0.05


class Core:
    """Runs the batch. `words` are the tokens of answers."""

    def __init__(self, batch: Batch, pins: SimPins, reader: Reader, words: Sequence[int]) -> None:
        self.batch, self._pins, self._reader, self._words = batch, pins, reader, words
        self._pool = batch.pool
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something has changed that the next step should know of."""
        self._wake.set()

    def submit(self, live: SimJob) -> None:
        """Take a job; its outputs come in its queue."""
        self.batch.submit(live)
        self._wake.set()

    def stop(self, live: SimJob) -> None:
        """End a job without a pin."""
        if live.phase == "ended":
            self._drop_unread(live)
            return
        transferring = live.phase == "reading"
        self.batch.leave(live)
        self._let_go(live)
        if not transferring:  # else its blocks are dropped, and its source is over, once the transfer is
            self._finish_source(live)
            self._pool.drop(live.blocks)
        live.outputs.put_nowait(cancelled(live))
        self._wake.set()

    def _drop_unread(self, live: SimJob) -> None:
        """Of a job that has ended: its pin, if nobody has received it yet."""
        waiting = []
        while not live.outputs.empty():
            output = live.outputs.get_nowait()
            if isinstance(output, EngineOutput) and output.ref is not None:
                self._pins.release([output.ref])
                output = replace(output, ref=None, params=None, pinned_tokens=0, expires_at=0.0)
            waiting.append(output)
        for output in waiting:
            live.outputs.put_nowait(output)

    def finish_soon(self, live: SimJob) -> None:
        """End a job at its next token, or at once if it has none yet."""
        if live.phase == "ended":
            return
        if live.generated:
            live.ask.most, live.ask.least = live.generated + 1, 0
            self._wake.set()
        else:
            self.stop(live)

    # ---- steps

    async def run(self) -> None:
        """Make steps until cancelled."""
        due = time.monotonic()
        while True:
            for live in self.batch.admit():
                self._admitted(live)
            now = time.monotonic()
            begin = max(due, now - _LAG_S)
            step = self.batch.plan(begin)
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            count, due = await self._pass(step, begin)
            if count:
                self.batch.finish(step, count, due, self._sampled, self._words)

    async def _pass(self, step: Step, begin: float) -> tuple[int, float]:
        """Let a step's time pass. Returns how many of its steps are over, and when: what comes up ends it after the current one."""
        count = step.count
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            left = begin + count * step.seconds - time.monotonic()
            if left <= 0:
                # Others have their turn even if every step is late.
                await asyncio.sleep(0)
                return count, begin + count * step.seconds
            timer = loop.call_later(left, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            now = time.monotonic()
            if step.is_void:
                return 0, now
            count = min(count, int((now - begin) / step.seconds) + 1)

    def _admitted(self, live: SimJob) -> None:
        self._let_go(live)
        live.reused = self._reader.reused(live) if live.job.kind == "decode" else None
        read = None if live.source is None or unusable(live) else self._reader.wanted(live)
        if read is None:
            self._finish_source(live)
            self.batch.ready(live)
            return
        live.phase = "reading"
        self.batch.reading.add(live)
        self._reader.start(live, read, self._has_read)

    def _has_read(self, live: SimJob, contents: list[bytes], tokens: int) -> None:
        """A transfer is over; without contents it has failed."""
        self._finish_source(live)
        if live.phase != "reading":
            self._pool.drop(live.blocks)
        else:
            if contents:
                self.batch.read(live, contents, tokens)
            self.batch.ready(live)
        self._wake.set()

    def _sampled(self, live: SimJob, tokens: list[int], reason: str | None) -> None:
        form = live.emit(tokens, reason, live.generated == len(tokens))
        if reason is None:
            live.outputs.put_nowait(EngineOutput(output=form, tokens=len(tokens)))
            return
        self.batch.leave(live)
        if live.job.pin and live.ask.choices == 1:
            last = self._pins.pin(live, form, len(tokens))
        else:
            self._pool.drop(live.blocks)
            last = EngineOutput(output=form, tokens=len(tokens), finished=True, kv=live.facts)
        live.outputs.put_nowait(last)

    def _let_go(self, live: SimJob) -> None:
        """Release what the job was given to release."""
        refs, live.release = live.release, ()
        self._pins.release(refs)

    def _finish_source(self, live: SimJob) -> None:
        """End the pin that the job was to read."""
        source, live.source = live.source, None
        self._reader.over(source)
