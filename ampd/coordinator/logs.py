"""The Coordinator's log: lines gathered and written together, since two a round are a visible part of a round's cost."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_MOST_LINES = 512
_PERIOD_S = 0.1


class GatheringHandler(logging.Handler):
    """Writes gathered lines when `flush` is called, when there are many, and at once with a warning or worse."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: list[str] = []
        self._second, self._stamp = 0, ""

    def put(self, logger: logging.Logger, text: str) -> None:
        """`logger.info(text)` in the form of `FORMAT`, without the way there, which costs more than making most texts."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        self._lines.append(f"{self._stamp},{int(1000 * (now - second)):03d} INFO {logger.name} {text}")
        if len(self._lines) >= _MOST_LINES:
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING or len(self._lines) >= _MOST_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def set_up() -> GatheringHandler:
    """Log to standard error from INFO on; without what costs and is not shown: caller, thread and process of each line."""
    handler = GatheringHandler(sys.stderr)
    logging.basicConfig(level=logging.INFO, format=FORMAT, handlers=[handler])
    logging._srcfile = None  # the documented way to not look for the caller
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    return handler


async def flushing(handler: logging.Handler) -> None:
    """Write what has been gathered, again and again, until cancelled."""
    while True:
        await asyncio.sleep(_PERIOD_S)
        handler.flush()
