"""A cheap real process in place of a worker, a Coordinator or a frontend. Flags say how it behaves. Standard library only."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="standin")
    parser.add_argument("--order", type=Path, help="file to which the name is appended at the end")
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--say", default="")
    parser.add_argument("--exit", type=int, help="exit with this code")
    parser.add_argument("--exit-when", type=Path, help="... once this file exists")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--helper", type=Path, help="start a stubborn process, write its pid here")
    parser.add_argument("--shared-memory", type=Path, help="make a block of it, write its name here")
    parser.add_argument("--http", type=int)
    parser.add_argument("--model")
    args = parser.parse_args()

    stop = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if args.stubborn else lambda *_: stop.set())
    if args.say:
        sys.stdout.write(args.say + "\n")
        sys.stdout.flush()
    if args.helper:
        args.helper.write_text(str(subprocess.Popen([sys.executable, "-S", __file__, "--stubborn"]).pid))
    if args.shared_memory:
        block = SharedMemory(create=True, size=1024)
        args.shared_memory.write_text(block.name)
    time.sleep(args.ready_after)
    if args.exit is not None and args.exit_when is None:
        sys.exit(args.exit)
    if args.http:
        threading.Thread(target=serve_http, args=(args.http, args.model), daemon=True).start()
    if args.ready_file and not args.never_ready:
        args.ready_file.write_text("")
    while not stop.wait(0.02):
        if args.exit_when and args.exit_when.exists():
            sys.exit(args.exit)
    if args.order:
        with args.order.open("a") as order:
            order.write(args.name + "\n")


def serve_http(port: int, model: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"data": [{"id": model}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer({"choices": [{"text": "x"}]})

        def answer(self, body: dict[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
