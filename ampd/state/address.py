"""Where Redis is: `state.url` in redis-py's notation, as the arguments of a connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url

from ampd.errors import ConfigError

_SCHEMES = "redis://, rediss:// or unix://"
_COMMON = ("username", "password", "db", "protocol", "connection_class")
_TLS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
)
_REQUIRE = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis. `path` is a unix socket's, or None; `tls` is None for plain text. `where` names it, without password."""

    where: str
    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: ssl.SSLContext | None = None

    @staticmethod
    def parse(url: str, password: str | None = None) -> Address:
        """Read a URL such as rediss://user@host:6379/0?ssl_ca_certs=ca.pem; `password` goes before the URL's own.

        Raises ConfigError on another kind of URL, an option that is not known here, or certificate files that cannot be read.
        """
        where = "?"
        try:
            parts = urlsplit(url)
            where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            found: Mapping[str, Any] = parse_url(url)
        except ValueError as e:
            raise ConfigError(f"state.url {where}: {e}; use {_SCHEMES}") from None
        kind = {"redis": ("host", "port"), "rediss": ("host", "port", *_TLS), "unix": ("path",)}[parts.scheme]
        if unknown := sorted(set(found) - {*_COMMON, *kind}):
            options = ", ".join(("db", *kind[2:]))
            raise ConfigError(f"state.url {where}: unknown option {unknown[0]!r}; a {parts.scheme}:// URL knows {options}")
        if parts.scheme == "unix" and not found.get("path"):
            raise ConfigError(f"state.url {where}: a unix:// URL needs the path of a socket")
        return Address(
            where=where,
            host=found.get("host", "localhost"),
            port=found.get("port", 6379),
            path=found.get("path"),
            username=found.get("username"),
            password=password or found.get("password"),
            db=found.get("db", 0),
            tls=_context(where, found) if parts.scheme == "rediss" else None,
        )

    def greeting(self) -> list[tuple[str | int, ...]]:
        """The commands that a new connection begins with."""
        commands: list[tuple[str | int, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", self.db))
        return commands or [("PING",)]


def _context(where: str, options: Mapping[str, Any]) -> ssl.SSLContext:
    """A client context that checks the server's certificate, and its name, unless told otherwise."""
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))
        if "ssl_ciphers" in options:
            context.set_ciphers(options["ssl_ciphers"])
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(
            f"state.url {where}: certificates cannot be used ({e}); check ssl_ca_certs, ssl_certfile and ssl_keyfile"
        ) from None
    require = options.get("ssl_cert_reqs", "required")
    if require not in _REQUIRE:
        raise ConfigError(f"state.url {where}: ssl_cert_reqs={require!r}; use none, optional or required")
    context.check_hostname = require != "none" and bool(options.get("ssl_check_hostname", True))
    context.verify_mode = _REQUIRE[require]
    return context
