"""moto's server in this process: AWS to whoever gets its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer


@contextmanager
def moto_server() -> Iterator[str]:
    """Give the address of a server of AWS's APIs, which is there until the block has ended."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def empty_account(address: str) -> None:
    """Forget all that was made there."""
    with urlopen(Request(f"{address}/moto-api/reset", method="POST")):  # noqa: S310 - our own
        pass
