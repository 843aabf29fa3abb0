from __future__ import annotations

import pytest

from trialfleet.errors import InputError
from trialfleet.infra.manager.config import ManagerSettings, render


def knobs(settings: ManagerSettings) -> dict[str, str]:
    lines = [line for line in render(settings).splitlines() if line and not line.startswith("#")]
    return {
        name.strip(): value.strip() for name, _, value in (each.partition("=") for each in lines)
    }


def test_a_node_is_named_only_where_the_collector_must_know_it() -> None:
    chosen = knobs(ManagerSettings(user="ada"))
    named = {name for name, value in chosen.items() if "$(POOL_NODE)" in value}
    assert named == {
        "COLLECTOR.ALLOW_READ",
        "COLLECTOR.ALLOW_ADVERTISE_STARTD",
        "COLLECTOR.ALLOW_ADVERTISE_MASTER",
    }
    assert chosen["POOL_NODE"] == "node@$(TRUST_DOMAIN)"


def test_no_permission_contains_an_asterisk() -> None:
    chosen = knobs(ManagerSettings(user="ada"))
    allowed = [value for name, value in chosen.items() if "ALLOW_" in name]
    assert len(allowed) >= 8
    assert not [value for value in allowed if "*" in value]
    assert chosen["POOL_OWNERS"].split(", ")[-1] == "ada@$(UID_DOMAIN)"


def test_no_level_is_less_than_required() -> None:
    """HTCondor's packages come with a file before ours that makes reading optional."""
    chosen = knobs(ManagerSettings(user="ada"))
    for level in ("DEFAULT", "CLIENT", "READ"):
        for what in ("AUTHENTICATION", "ENCRYPTION", "INTEGRITY"):
            assert chosen[f"SEC_{level}_{what}"] == "REQUIRED"


def test_the_same_settings_give_the_same_text() -> None:
    assert render(ManagerSettings(user="ada")) == render(ManagerSettings(user="ada"))


def test_the_daemons_use_the_managers_own_address() -> None:
    assert knobs(ManagerSettings(user="ada"))["CONDOR_HOST"] == "$(IP_ADDRESS)"
    chosen = knobs(ManagerSettings(user="ada", address="pool.example", port=9700))
    assert chosen["CONDOR_HOST"] == "pool.example"
    assert chosen["COLLECTOR_HOST"] == "$(CONDOR_HOST):9700"
    assert chosen["SHARED_PORT_PORT"] == "9700"
    assert "TCP_FORWARDING_HOST" not in chosen


def test_a_forwarded_address_is_published_without_changing_the_daemons_host() -> None:
    chosen = knobs(ManagerSettings(user="ada", address="203.0.113.7", forwarded=True))
    assert chosen["TCP_FORWARDING_HOST"] == "203.0.113.7"
    assert chosen["CONDOR_HOST"] == "$(IP_ADDRESS)"
    assert "PRIVATE_NETWORK_NAME" in chosen


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("root", "no jobs of root"),
        ("condor", "HTCondor's daemons"),
        ("node", "a node's token has that name"),
        ("a\nALLOW_WRITE = *", "can't be the name of an account"),
        ("*", "can't be the name of an account"),
        ("a@b", "can't be the name of an account"),
        ("a,b", "can't be the name of an account"),
        ("", "can't be the name of an account"),
    ],
)
def test_reserved_and_invalid_user_names_are_refused(user: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        ManagerSettings(user=user)


@pytest.mark.parametrize("address", ["a b", "a\nb", "pool:9618", "$(X)", "-a", "a*", "::1"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="must be a host name or an IPv4 address"):
        ManagerSettings(user="ada", address=address)
