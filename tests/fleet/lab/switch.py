"""The cloud's network: one bridge, and a cable to each machine. Runs inside the lab's namespaces.

As in a VPC, machines reach each other, AWS's services and their metadata through the router, which
is the bridge itself. The router's hardware address is fixed; each machine's follows from its IP
address.
"""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address

BRIDGE = "cloud"
ROUTER = "10.0.0.1"  # AWS's services answer here
ROUTER_MAC = "02:00:0a:00:00:01"
METADATA = "169.254.169.254"
NETWORK = 8  # bits of the prefix: it contains every region's VPC


def ip(commands: str) -> None:
    """Run commands of `ip`, a line each."""
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def build() -> None:
    """Make the bridge; it forwards packets, and sends no redirects that would bypass it."""
    ip(f"""
        link set lo up
        link add {BRIDGE} address {ROUTER_MAC} type bridge
        addr add {ROUTER}/{NETWORK} dev {BRIDGE}
        addr add {METADATA}/32 dev {BRIDGE}
        link set {BRIDGE} up
    """)
    for name in ("all", "default", BRIDGE):
        settings = f"net.ipv4.conf.{name}.send_redirects=0"
        subprocess.run(["sysctl", "--quiet", "--write", settings], check=True)
    subprocess.run(["sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"], check=True)


def mac(address: str) -> str:
    """Return the hardware address of the machine with an IP address."""
    return ":".join(f"{byte:02x}" for byte in (2, 0, *IPv4Address(address).packed))


def cable(address: str) -> str:
    """Return the name of a machine's port on the bridge."""
    return "v" + IPv4Address(address).packed.hex()


def connect(address: str, pid: int) -> None:
    """Connect the bridge to the network namespace of process `pid`."""
    port = cable(address)
    ip(f"""
        link add {port} type veth peer name eth0 address {mac(address)} netns {pid}
        link set {port} master {BRIDGE} up
        neigh replace {address} lladdr {mac(address)} nud permanent dev {BRIDGE}
    """)


def unplug(address: str) -> None:
    """Remove a machine's cable; the kernel may have done so already, with its namespace."""
    subprocess.run(["ip", "link", "delete", cable(address)], stderr=subprocess.DEVNULL)


def cut(address: str) -> None:
    """Drop every packet from and to a machine; neither side gets an error."""
    ip(f"link set {cable(address)} nomaster")


def reconnect(address: str) -> None:
    """End the effect of `cut`."""
    ip(f"link set {cable(address)} master {BRIDGE}")


def part(one: str, other: str) -> None:
    """Drop every packet between two machines at the router; all other packets pass."""
    _between(one, other, "add")


def join(one: str, other: str) -> None:
    """End the effect of `part`."""
    _between(one, other, "del")


def _between(one: str, other: str, verb: str) -> None:
    ip(f"""
        rule {verb} from {one} to {other} blackhole
        rule {verb} from {other} to {one} blackhole
    """)
