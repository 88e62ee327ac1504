"""The scheduler of decode workers: local prefills beside a running batch, as `policy.local_prefill` says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import RequestStatus

from ampd.policy.chunks import ChunkLimits
from ampd.workers.kv.chunk_bound import ChunkBound
from ampd.workers.kv.scheduler import AmpdScheduler
from ampd.workers.kv.step_times import StepTimes


class AmpdDecodeScheduler(AmpdScheduler):
    """Three ways of running a prefill beside a decode batch, be it of a round bound here or deflected from another worker.

    slack: one prefill after the other, each step's share bounded by the batch's ITL slack; further ones join a step only if they
    fit into it whole. chunked: vLLM's own, chunks of `prefill_chunk`. exclusive: the batch pauses until no prefill is left.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings, cost = self.settings, self.settings.cost_model()
        self._mode = settings.local_prefill
        times = StepTimes(cost, settings.theta, measured=settings.profile is not None)
        self.bound = ChunkBound(times, ChunkLimits(max_tokens=settings.prefill_chunk), settings.itl_target_s, self.clock)
        self._stuck = False  # the last step paused the batch and found no room for a prefill either

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step."""
        prefills = self._prefills()
        decoding = [r for r in self.running if not r.is_prefill_chunk and not _all_planned(r)]
        if not prefills or self._mode == "chunked":
            output = super().schedule(*args, **kwargs)
        elif self._mode == "slack":
            budget = self.bound.budget(decoding, _context_before(prefills[0]))
            with self._chunk(budget), self._without(_beyond(prefills, budget)):
                output = super().schedule(*args, **kwargs)
        else:
            with self._without([] if self._stuck else decoding):
                output = super().schedule(*args, **kwargs)
            # Its KV blocks are the batch's: nobody would ever go on.
            self._stuck = not self._stuck and output.total_num_scheduled_tokens == 0
        self._note(output, decoding)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """A step has ended."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        known = (self.requests.get(request_id) for request_id in scheduler_output.num_scheduled_tokens)
        self.bound.ended(scheduler_output, [r for r in known if r is not None and not r.is_finished()])
        return outputs

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.bound.forget(request)
        return super()._free_request(request, *args, **kwargs)

    def _prefills(self) -> list[Any]:
        """Requests with prompt tokens to compute, in the order of their turns; those that a read will complete are none."""
        running = [r for r in self.running if r.is_prefill_chunk]
        read = [r for r in self.kv_holding_waiting if not self._is_reading(r) and _left(r) > 1]
        ready = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        waiting = [r for r in self.waiting if r.status in ready and not (r.kv_transfer_params or {}).get("do_remote_prefill")]
        return [*running, *read, *waiting]

    def _note(self, output: Any, decoding: Sequence[Any]) -> None:
        planned = output.num_scheduled_tokens
        batch = [r for r in decoding if r.request_id in planned]
        others = planned.keys() - {r.request_id for r in batch}
        # vLLM has counted the step's tokens as computed by now.
        prefills = [(self.requests[i].num_computed_tokens - planned[i], planned[i]) for i in others]
        self.bound.planned(output, batch, prefills)

    @contextmanager
    def _chunk(self, tokens: int) -> Iterator[None]:
        """vLLM takes no more than this of one prompt into a step, unless it is the only request."""
        config = self.scheduler_config
        before, config.long_prefill_token_threshold = config.long_prefill_token_threshold, tokens
        try:
            yield
        finally:
            config.long_prefill_token_threshold = before

    @contextmanager
    def _without(self, requests: Sequence[Any]) -> Iterator[None]:
        """Plan without these, running or waiting; they keep their blocks and their places."""
        hidden = {r.request_id for r in requests}
        running = list(self.running)
        resting = [r for r in running if r.request_id in hidden]
        self.running = [r for r in running if r.request_id not in hidden]
        self.max_num_active_reqs -= len(resting)
        waiting = [r for r in self.waiting if r.request_id in hidden]
        holding = [r for r in self.kv_holding_waiting if r.request_id in hidden]
        try:
            with self._out_of_sight(waiting, holding):
                yield
        finally:
            self.max_num_active_reqs += len(resting)
            # Some may have been preempted meanwhile, others admitted.
            admitted = [r for r in self.running if r not in set(running)]
            self.running = [r for r in running if r.status == RequestStatus.RUNNING] + admitted


def _beyond(prefills: Sequence[Any], budget: int) -> Sequence[Any]:
    """The prefills behind the first one, from the first that does not fit into what is left of the budget."""
    left = budget
    for index, request in enumerate(prefills):
        left -= _left(request)
        if left < 0:
            return prefills[max(index, 1) :]
    return ()


def _left(request: Any) -> int:
    tokens: int = request.num_tokens - request.num_computed_tokens
    return tokens


def _context_before(prefill: Any) -> int:
    """Tokens that its next chunk follows. All of its own before its first, as long as it is not known what the cache holds."""
    tokens: int = prefill.num_computed_tokens or prefill.num_tokens
    return tokens


def _all_planned(request: Any) -> bool:
    """Whether the request's last token is being computed already."""
    done: bool = request.num_output_tokens + request.num_output_placeholders >= request.max_tokens
    return done
