"""Imitates a VPC's DHCP service: gives each machine the address that its instance has in AWS."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

from . import switch

SERVER_PORT, CLIENT_PORT = 67, 68
COOKIE = b"\x63\x82\x53\x63"
REQUEST, REPLY = 1, 2  # of a packet's first byte
DISCOVER, OFFER, ASKS, ACK = 1, 2, 3, 5  # of option 53
LEASE = 3_600  # seconds, as in a VPC
HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s192x")
PAD, NETMASK, ROUTER, LEASED, KIND, SERVER, END = 0, 1, 3, 51, 53, 54, 255


def serve(addresses: Callable[[], dict[str, str]]) -> None:
    """Answer requests on the bridge, in a thread of this process.

    Args:
        addresses: returns the IP address of each instance by its hardware address.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, switch.BRIDGE.encode())
    listener.bind(("", SERVER_PORT))

    def answer() -> None:
        while True:
            packet = listener.recv(4096)
            reply = reply_to(packet, addresses())
            if reply:
                listener.sendto(reply, ("255.255.255.255", CLIENT_PORT))

    threading.Thread(target=answer, daemon=True).start()


def reply_to(packet: bytes, addresses: dict[str, str]) -> bytes | None:
    """Return the answer to a machine that asks for an address; None if there is none."""
    if len(packet) < HEADER.size + len(COOKIE) or packet[0] != REQUEST:
        return None
    fields = HEADER.unpack_from(packet)
    mac = fields[11]
    address = addresses.get(mac[:6].hex(":"))
    asked = options(packet[HEADER.size + len(COOKIE) :]).get(KIND, b"\0")[0]
    if address is None or asked not in {DISCOVER, ASKS}:
        return None
    router = IPv4Address(switch.ROUTER).packed
    kind = OFFER if asked == DISCOVER else ACK
    header = HEADER.pack(
        *(REPLY, *fields[1:3], 0, fields[4], 0, 0x8000),
        *(b"\0" * 4, IPv4Address(address).packed, router, b"\0" * 4, mac),
    )
    dhcp_options = {
        KIND: bytes([kind]),
        SERVER: router,
        LEASED: struct.pack("!I", LEASE),
        NETMASK: IPv4Network(f"0.0.0.0/{switch.NETWORK}").netmask.packed,
        ROUTER: router,
    }
    return (
        header
        + COOKIE
        + b"".join(bytes([k, len(v)]) + v for k, v in dhcp_options.items())
        + b"\xff"
    )


def options(data: bytes) -> dict[int, bytes]:
    """Return the options of a DHCP packet by their numbers."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 1 < len(data) and data[at] != END:
        if data[at] == PAD:
            at += 1
            continue
        length = data[at + 1]
        found[data[at]] = data[at + 2 : at + 2 + length]
        at += 2 + length
    return found
