"""The exception tree. Every error a user can cause names the field, the value and the fix.

AmpdError
 +- ConfigError          a configuration key is unknown, of the wrong type or impossible; raised at start
 +- SetupError           the machine lacks something (binary, port, model file, package); raised at start
 |   +- ProfileError     a profile.json is missing, malformed, or of another model, theta or block size
 +- ComponentDied        a process of a local graph ended unasked; the graph is stopped
 +- RequestError         the client's request cannot be served as written; becomes a 4xx
 +- StateError           Redis did not answer in time or refused a command; callers degrade
 +- WorkerError          a worker failed, vanished, or answered out of protocol; the round is retried or failed
 |   +- WorkerGone       the worker is no longer there
 |   +- NoWorkers        no live worker of the needed role
 +- RoundCancelled       the round's client went away; nobody is waiting for an answer
 +- KvFenceError         a KV handle does not match its worker, session, prefix or expiry; callers recompute
 +- EngineDead           this process's engine can serve no more; the process exits
"""

from __future__ import annotations


class AmpdError(Exception):
    """Base of all errors raised by ampd."""


class ConfigError(AmpdError):
    """A configuration key is unknown, of the wrong type, or impossible."""


class SetupError(AmpdError):
    """The machine lacks something that the configuration needs."""


class ProfileError(SetupError):
    """A profile is missing, malformed, or does not fit the engine it is used for."""


class ComponentDied(AmpdError):
    """A process of a local graph ended without being asked to."""


class RequestError(AmpdError):
    """The client's request cannot be served as written (HTTP 4xx)."""


class StateError(AmpdError):
    """The state store did not answer in time, or refused a command."""


class WorkerError(AmpdError):
    """A worker failed or answered out of protocol."""


class WorkerGone(WorkerError):
    """The worker is no longer there: its stream broke or its instance is unknown."""


class NoWorkers(WorkerError):
    """No live worker of the needed role is known."""


class RoundCancelled(AmpdError):
    """The round's client went away; nobody is waiting for an answer."""


class KvFenceError(AmpdError):
    """A KV handle does not match its worker epoch, session, token prefix or expiry.

    Never shown to a client: whoever sees it recomputes instead.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"KV handle refused: {cause}")
        self.cause = cause


class EngineDead(AmpdError):
    """The engine of this process can serve no more requests."""
