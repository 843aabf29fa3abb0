"""The cloud's network: one bridge, and a cable to each machine. Runs inside the lab's namespaces.

As in a VPC, machines reach each other, AWS's services and their metadata through the router, which
is the bridge itself; its hardware address is fixed, and each machine's follows from its address.
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
    """Make the bridge; the router forwards, and doesn't advise short cuts past itself."""
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
    """Return the hardware address of a machine."""
    return ":".join(f"{byte:02x}" for byte in (2, 0, *IPv4Address(address).packed))


def cable(address: str) -> str:
    """Return the name of a machine's port on the bridge."""
    return "v" + IPv4Address(address).packed.hex()


def connect(address: str, pid: int) -> None:
    """Lay a cable from the bridge into the network namespace of process `pid`."""
    port = cable(address)
    ip(f"""
        link add {port} type veth peer name eth0 address {mac(address)} netns {pid}
        link set {port} master {BRIDGE} up
        neigh replace {address} lladdr {mac(address)} nud permanent dev {BRIDGE}
    """)


def unplug(address: str) -> None:
    """Take a machine's cable away; the kernel may have done so already, with its namespace."""
    subprocess.run(["ip", "link", "delete", cable(address)], stderr=subprocess.DEVNULL)


def cut(address: str) -> None:
    """Lose every packet from and to a machine; neither side gets a notice."""
    ip(f"link set {cable(address)} nomaster")


def reconnect(address: str) -> None:
    """Connect it again."""
    ip(f"link set {cable(address)} master {BRIDGE}")


def part(one: str, other: str) -> None:
    """Lose every packet between two machines: the router drops them; all else goes through."""
    _between(one, other, "add")


def join(one: str, other: str) -> None:
    """Let them reach each other again."""
    _between(one, other, "del")


def _between(one: str, other: str, verb: str) -> None:
    ip(f"""
        rule {verb} from {one} to {other} blackhole
        rule {verb} from {other} to {one} blackhole
    """)
