"""The connector's half in the engine process: decides what is read, pinned and released."""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.request import RequestStatus

from ampd.workers.kv.facts import FactBook
from ampd.workers.kv.params import FACTS, PIN, RELEASE, facts_dict, reads_history
from ampd.workers.kv.settings import KvSettings

_PINNABLE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class AmpdConnectorScheduler(NixlPullConnectorScheduler):  # type: ignore[misc]
    """See ampd.workers.kv.connector."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        settings = KvSettings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
        cost = settings.read_times(settings.cost_model())
        self._book = FactBook(time.time, lambda tokens: cost.t_kv(tokens, settings.theta, settings.theta, "history"))
        self._to_release: set[str] = set()
        # A request that may read ahead but not be computed yet; set by the scheduler for each step.
        self.only_read: str | None = None

    def release(self, request_id: str) -> None:
        """Drop a pin with the next step. Unknown ids are ignored by the worker."""
        self._to_release.add(request_id)

    def has_orders(self) -> bool:
        """Whether the worker has something to be told even if nothing is scheduled."""
        return bool(self._to_release or self._reqs_need_recv or self._reqs_need_send or self._reqs_not_processed)

    def link_s(self) -> float:
        """Estimated seconds that the reads under way still take."""
        return self._book.link_s()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens to read beyond the local prefix cache; None to be asked again with the next step."""
        self._book.looked_up(request.request_id, num_computed_tokens)
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode") and params.get("_remote_blocks_processed"):
            # The one read has failed, or was lost to a preemption: stock would offer it again and never start it.
            return 0, False
        tokens, asynchronous = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens == 0 and request.request_id == self.only_read:
            return None, False
        return tokens, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks: start its read, and let go of what it was given to release."""
        params = request.kv_transfer_params
        if params:
            if num_external_tokens:
                self._book.reading(request.request_id, num_external_tokens)
            self._release_named(params)
            if params.get(PIN):
                # Stock follows only requests that came with a remote side, and the worker frees only what it follows.
                self._reqs_in_batch.add(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Pin the blocks or let them go; the returned parameters travel with the result."""
        facts = self._book.take(request.request_id)
        params = request.kv_transfer_params
        if not params:
            return False, None
        self._release_named(params)
        if reads_history(params):
            # An empty list of blocks only notifies the holder, which then frees its pin.
            self._reqs_need_recv[request.request_id] = (request, [], (), False)
            params["_remote_blocks_processed"] = True
        done = request.status in _PINNABLE
        if done and not params.get(PIN):
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, {FACTS: facts_dict(facts)}
        pinned, result = super().request_finished(request, block_ids)
        if result is not None:
            # The last sampled token has no KV yet, whatever an asynchronous scheduler has counted ahead.
            result["remote_num_tokens"] = min(result["remote_num_tokens"], request.num_tokens - 1)
            result[FACTS] = facts_dict(facts)
        return pinned, result

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Orders for the worker, with the coming step."""
        self._book.computing(scheduler_output.num_scheduled_tokens)
        meta = super().build_connector_meta(scheduler_output)
        meta.ampd_release, self._to_release = self._to_release, set()
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """What the worker has seen end."""
        super().update_connector_output(connector_output)
        self._book.received(connector_output.finished_recving or (), connector_output.failed_recving or ())

    def _release_named(self, params: dict[str, Any]) -> None:
        self._to_release.update(params.pop(RELEASE, ()))
