"""The command `lab` on the manager of a demonstration: asks the lab's cloud to cause failures.

It needs only the standard library. `serve` runs in the cloud's process.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ADDRESS, PORT = "10.0.0.1", 5001  # the router, behind which the cloud is
USAGE = """lab nodes                      the instances, and whether their machines are on
lab interrupt ID [SECONDS]     spot notice now, the end after SECONDS (120)
lab rebalance ID               AWS recommends to replace a spot instance
lab kill ID                    hardware loss, without a notice
lab partition ID SECONDS       every packet is lost for so long
lab console ID                 what the machine's console has printed
lab full ZONE                  no capacity: the zone has no room for nodes
lab room                       every zone has room again
lab deny ACTION                no permission: your keys may not, such as ec2:CreateFleet
lab permit                     your keys may do again what they might"""
ALONE = {"room", "permit"}  # verbs without more words
NUMBERS = {"interrupt": [120.0], "partition": [20.0]}  # seconds, where none are given


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Take requests, JSON with `do` and `words`, in a thread of this process."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer({**request, "named": {}}), default=str).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer((ADDRESS, PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(do: str, *words: object) -> Any:
    """Send a request to the cloud, and return the answer."""
    body = json.dumps({"do": do, "words": words}).encode()
    with urllib.request.urlopen(f"http://{ADDRESS}:{PORT}/", body, timeout=60) as reply:
        answer = json.loads(reply.read())
    if "error" in answer:
        sys.exit(f"lab: {answer['error']}")
    return answer["result"]


def main(words: list[str]) -> None:
    """Run a command line of `lab`."""
    if not words or words[0] not in {line.split()[1] for line in USAGE.splitlines()}:
        sys.exit(USAGE)
    verb, rest = words[0], words[1:]
    if verb == "nodes":
        for one in ask("instances"):
            power = "on" if one["on"] else "off"
            print(one["id"], one["state"], power, one["type"], one["lifecycle"], one["zone"])
    elif bool(rest) == (verb in ALONE):
        sys.exit(USAGE)
    elif not rest:
        print(ask(verb) or "done")
    else:
        numbers = [float(word) for word in rest[1:]] or NUMBERS.get(verb, [])
        print(ask(verb, rest[0], *numbers) or "done")


if __name__ == "__main__":
    main(sys.argv[1:])
