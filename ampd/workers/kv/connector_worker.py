"""The connector's half in each worker process: owns the NIXL agent, posts reads, sees them and other workers' reads end."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from ampd.workers.kv.quiet import own_cores, relaxed_progress_thread


class AmpdConnectorWorker(NixlPullConnectorWorker):  # type: ignore[misc]
    """See ampd.workers.kv.connector."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        with own_cores(), relaxed_progress_thread():
            super().__init__(vllm_config, engine_id, kv_cache_config)
        self._ended: set[str] = set()

    def start_load_kv(self, metadata: Any) -> None:
        """Follow a step's orders."""
        super().start_load_kv(metadata)
        if metadata.ampd_release:
            # A pin that has been read is often released as well: take note of the reads first.
            self._ended.update(self._get_new_notifs())
            for request_id in metadata.ampd_release:
                self._release(request_id)

    def _release(self, request_id: str) -> None:
        # A pin that is not in the table any more has been read or has expired, and was reported then.
        if self._reqs_to_send.pop(request_id, None) is None:
            return
        self._reqs_to_process.discard(request_id)
        self.consumer_notification_counts_by_req.pop(request_id, None)
        self.expected_consumer_notifications_by_req.pop(request_id, None)
        self._ended.add(request_id)

    def get_transfer_results(self) -> Any:
        """What has ended since the last step."""
        results = super().get_transfer_results()
        results.finished_sending.update(self._ended)
        self._ended.clear()
        return results
