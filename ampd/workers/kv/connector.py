"""ampd's KV connector: vLLM's NIXL pull connector with its gaps closed.

vLLM 0.31 loads it by `kv_connector_module_path`; `reference` for what it relies on is tests/engine/test_vllm_contract.py.
What it adds to the stock connector:

- A read of history that fails, or a request preempted after one, is computed locally; stock offers the same read again,
  starts none, and the request waits for ever.
- Every request that asks for a pin is followed by the worker, so a locally computed turn is released as well.
- Pins can be released by name, at once (`AmpdScheduler`) or by a later request (`RELEASE`).
- A source is used up by its job whatever becomes of that: read, found in the own prefix cache, or aborted before its turn.
- What was read, when, and what failed comes back with each result (`FACTS`).
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.platforms import current_platform

from ampd.workers.kv.connector_scheduler import AmpdConnectorScheduler
from ampd.workers.kv.connector_worker import AmpdConnectorWorker
from ampd.workers.kv.params import LOAD
from ampd.workers.kv.quiet import limit_queue_spin


class AmpdConnector(NixlPullConnector):  # type: ignore[misc]
    """The facade that vLLM makes once in the engine process (SCHEDULER) and once in each worker process (WORKER)."""

    connector_scheduler: AmpdConnectorScheduler | None
    connector_worker: AmpdConnectorWorker | None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        # Past NixlPullConnector's own constructor: it would make its stock halves, and with them a second NIXL agent.
        super(NixlPullConnector, self).__init__(vllm_config, role, kv_cache_config)
        # A CPU forward returns when it is done: a read posted after it, as stock does, would not overlap this step.
        self._read_before_forward = current_platform.is_cpu()
        if current_platform.is_cpu():
            limit_queue_spin()
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = AmpdConnectorScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = AmpdConnectorWorker(vllm_config, self.engine_id, kv_cache_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """The figures that vLLM adds up for its log: the connector's own."""
        return super().build_kv_connector_stats(data and {name: values for name, values in data.items() if name != LOAD})

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Take a step's orders, before its forward."""
        super().bind_connector_metadata(connector_metadata)
        if self._read_before_forward and self.connector_worker is not None:
            self.connector_worker.start_load_kv(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Post a step's reads."""
        if not self._read_before_forward:
            super().start_load_kv(forward_context, **kwargs)
