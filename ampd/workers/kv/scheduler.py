"""What ampd's vLLM schedulers share, and the one for prefill workers, which reads one task ahead; `decode_scheduler` has the other.

vLLM calls this interface non-public: the version is pinned, and tests/engine/test_vllm_contract.py names what is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import RequestStatus

from ampd.workers.kv.chunk_bound import context_of
from ampd.workers.kv.params import LOAD, reads_history
from ampd.workers.kv.settings import KvSettings

# The id that an engine's owner "aborts" to have it look once at what other workers have read meanwhile.
POLL = "ampd-poll"
# Before the id of a request that is to end at its next token.
FINISH = "ampd-finish:"


class AmpdScheduler(AsyncScheduler):  # type: ignore[misc]
    """Ends pins by name, rests while pins are all there is, and reports the load with vLLM's own statistics.

    vLLM steps for as long as it holds a finished request's blocks, a thousand empty steps a second through three processes.
    Here such an engine rests until there is work, a release, or a poll by its owner.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = KvSettings.read(self.vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._poll = False
        self._blocks = BlockCounter(self.kv_cache_manager.block_pool)

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Any]:
        """Abort requests; for one that has finished and is pinned, release the pin."""
        ids = [request_ids] if isinstance(request_ids, str) else None if request_ids is None else list(request_ids)
        ids = ids and [request_id for request_id in ids if not self._finishes(request_id)]
        for request_id in ids or ():
            self._poll = self._poll or request_id == POLL
            request = self.requests.get(request_id)
            if request is not None and request.is_finished() and self.connector is not None:
                self.connector.connector_scheduler.release(request_id)
        aborted: list[Any] = super().finish_requests(ids, finished_status)
        return aborted

    def _finishes(self, name: str) -> bool:
        """Whether a name asks for a request to end at its next token; sees to it, if the request still runs."""
        if not name.startswith(FINISH):
            return False
        request = self.requests.get(name.removeprefix(FINISH))
        if request is not None and not request.is_finished():
            # vLLM compares the two after every token. Steps that it has scheduled ahead are dropped, as with any length.
            request.max_tokens = min(request.max_tokens, request.num_output_tokens + 1)
        return True

    def has_finished_requests(self) -> bool:
        """Whether a step is due although nothing waits or runs."""
        if self.finished_req_ids or self.connector is None:
            return bool(self.finished_req_ids)
        return self._poll or self.connector.connector_scheduler.has_orders()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step."""
        self._poll = False
        return super().schedule(*args, **kwargs)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's statistics of a step; the connector's share of them, a dict, also carries LOAD."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and self.connector is not None:
            load = {
                "context": context_of(self.running),
                "link_s": self.connector.connector_scheduler.link_s(),
                "kv_written": self._blocks.allocated * self.block_size,
            }
            # vLLM's own readers of these figures want all of the connector's.
            figures = stats.kv_connector_stats or NixlKVConnectorStats().data
            stats.kv_connector_stats = {**figures, LOAD: load}
        return stats

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached KV that no request and no pin holds. vLLM itself refuses while any block is held."""
        if reset_running_requests:
            return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))
        blocks = self.kv_cache_manager.block_pool.blocks
        self.kv_cache_manager.evict_blocks({b.block_id for b in blocks if b.ref_cnt == 0 and b.block_hash is not None})
        return True

    def _is_reading(self, request: Any) -> bool:
        waits = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return waits and request.request_id not in self.finished_recving_kv_req_ids

    @contextmanager
    def _out_of_sight(self, waiting: list[Any], holding: list[Any]) -> Iterator[None]:
        self.waiting.remove_requests(waiting)
        self.kv_holding_waiting.remove_requests(holding)
        try:
            yield
        finally:
            self.waiting.extend(waiting)
            self.kv_holding_waiting.extend(holding)


class BlockCounter:
    """Counts the KV blocks that a pool gives out: every one of them is a block that the prefix cache may have forgotten."""

    def __init__(self, pool: Any) -> None:
        self.allocated = 0
        give = pool.get_new_blocks

        def counted(num_blocks: int) -> Any:
            blocks = give(num_blocks)
            self.allocated += num_blocks
            return blocks

        pool.get_new_blocks = counted


class AmpdPrefillScheduler(AmpdScheduler):
    """One prefill computes and at most one more reads its history meanwhile; all others wait without blocks, in order.

    Stock vLLM would start the read of every waiting request at once, and let prefills share the token budget. The running
    prefill must leave some of that budget over, or vLLM does not look at the waiting ones: long_prefill_token_threshold.
    """

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step, with only those waiting requests in sight whose turn it is."""
        waiting, holding, only_read = self._turns()
        self.connector.connector_scheduler.only_read = only_read
        with self._out_of_sight(waiting, holding):
            return super().schedule(*args, **kwargs)

    def _turns(self) -> tuple[list[Any], list[Any], str | None]:
        """Requests to hold back, those without blocks and those with (their read is complete); and which one may only read."""
        computing = any(r.num_computed_tokens < r.num_prompt_tokens for r in self.running)
        read = [r for r in self.kv_holding_waiting if not self._is_reading(r)]
        turn = read[: 0 if computing else 1]
        computing = computing or bool(turn)
        ahead = len(self.kv_holding_waiting) - len(turn)
        admitted, only_read = 0, None
        for request in self.waiting:
            if reads_history(request.kv_transfer_params):
                if ahead:
                    break
                ahead = 1
                only_read = request.request_id if computing else None
            elif computing or ahead:
                break
            else:
                computing = True
            admitted += 1
        return list(self.waiting)[admitted:], read[len(turn) :], only_read
