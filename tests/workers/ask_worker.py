"""`python ask_worker.py ENDPOINT ID`: the message on stdin goes to one instance of a Dynamo endpoint, its answer to stdout."""

from __future__ import annotations

import asyncio
import sys

from dynamo.runtime import DistributedRuntime


async def main(endpoint: str, instance: int) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    client = await runtime.endpoint(endpoint).client()
    while instance not in client.instance_ids():
        await asyncio.sleep(0.02)
    async for answer in await client.direct(sys.stdin.buffer.read(), instance, annotated=False):
        sys.stdout.buffer.write(answer)
    runtime.shutdown()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
