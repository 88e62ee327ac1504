"""What ampd relies on inside vLLM and NIXL, none of it a public interface: a new version has to pass here first."""

from __future__ import annotations

import inspect
import time
from importlib.metadata import version

import pytest
import vllm
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, connector, pull_scheduler, pull_worker
from vllm.distributed.nixl_utils import NixlWrapper, nixl_agent_config
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.request import Request

from ampd.workers.kv.decode_scheduler import AmpdDecodeScheduler
from ampd.workers.kv.quiet import relaxed_progress_thread
from ampd.workers.kv.scheduler import AmpdPrefillScheduler, AmpdScheduler


def test_versions() -> None:
    assert vllm.__version__.startswith("0.31.0")
    assert version("nixl") == "1.5.1"


RELIED_ON: dict[type, str] = {
    base_scheduler.NixlBaseConnectorScheduler: "_reqs_need_recv _reqs_need_send _reqs_in_batch _reqs_not_processed _stop_heartbeat",
    pull_scheduler.NixlPullConnectorScheduler: (
        "_remote_blocks_processed do_remote_decode do_remote_prefill remote_block_ids remote_num_tokens tp_size"
    ),
    pull_worker.NixlPullConnectorWorker: (
        "_reqs_to_send _reqs_to_process consumer_notification_counts_by_req expected_consumer_notifications_by_req _get_new_notifs"
    ),
    connector.NixlPullConnector: "connector_scheduler connector_worker get_transfer_results bind_connector_metadata",
    Scheduler: (
        "kv_holding_waiting finished_recving_kv_req_ids finished_req_ids has_finished_requests finish_requests "
        "long_prefill_token_threshold max_num_active_reqs update_from_output make_stats _free_request kv_connector_stats"
    ),
    BlockPool: "get_new_blocks",
    KVCacheManager: "block_pool evict_blocks",
    AsyncLLM: "assign_request_id notify_kv_transfer_request_rejected abort_immediately errored",
    Request: "max_tokens num_output_tokens num_output_placeholders num_computed_tokens num_tokens is_prefill_chunk is_finished",
    SpinCondition: "busy_loop_s last_read",
}


@pytest.mark.parametrize("owner", RELIED_ON, ids=lambda owner: owner.__name__)
def test_names(owner: type) -> None:
    text = "".join(inspect.getsource(cls) for cls in owner.__mro__ if cls.__module__.startswith("vllm"))
    assert [name for name in RELIED_ON[owner].split() if name not in text] == []


def test_the_constructor_that_ampd_goes_past_makes_only_the_two_halves() -> None:
    body = inspect.getsource(connector.NixlPullConnector.__init__)
    assert body.count("self.") == 6
    assert "NixlPullConnectorScheduler(" in body
    assert "NixlPullConnectorWorker(" in body


def test_the_scheduler_is_an_async_one() -> None:
    assert issubclass(AmpdPrefillScheduler, AmpdScheduler)
    assert issubclass(AmpdDecodeScheduler, AmpdScheduler)
    assert issubclass(AmpdScheduler, AsyncScheduler)


def test_the_prefill_threshold_is_read_with_every_step_and_bounds_running_and_waiting_prompts() -> None:
    body = inspect.getsource(Scheduler.schedule)
    assert body.count("self.scheduler_config.long_prefill_token_threshold") == 1
    assert body.count("if 0 < long_prefill_token_threshold < num_new_tokens:") == 2
    # Alone a request gets the whole budget; nothing decodes then.
    assert "if num_eligible_reqs > 1" in body


def test_every_block_is_given_out_by_one_method() -> None:
    assert inspect.getsource(BlockPool).count("free_block_queue.popleft") == 2  # the other one takes the null block


def test_nixl_agents_get_a_progress_thread_that_sleeps() -> None:
    """With the stock delay of 0 the thread alone takes as much of a core as it can get."""

    def cpu_s(name: str) -> float:
        agent = NixlWrapper(name, nixl_agent_config(backends=["UCX"]))
        before = time.process_time()
        time.sleep(1.0)
        used = time.process_time() - before
        del agent
        return used

    with relaxed_progress_thread():
        ours = cpu_s("ampd-test")
    assert ours < cpu_s("stock-test") / 2
