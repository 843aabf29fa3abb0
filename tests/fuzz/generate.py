"""Files as people and programs might leave them: right, nearly right, and nothing like it.

Everything comes from the one random generator that is handed in: the same seed, the same text.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from ruamel.yaml import YAML

SPACE = {
    "rate": {"type": "float", "low": 1e-4, "high": 0.1, "log": True, "default": 1e-3},
    "kind": {"type": "categorical", "choices": ["adamw", "sgd", True, 0.5]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"kind": ["sgd"]}},
    "units": {"type": "int", "low": 2, "high": 16, "step": 2},
    "epochs": 3,
}
TRAINER = {"command": ["sh", "go.sh"], "files": ["go.sh"], "minutes": 5}
FLEET: dict[str, Any] = {
    "name": "gpus",
    "aws_regions": ["eu-west-1", "us-east-1"],
    "zones": ["eu-west-1a"],
    "instance_types": ["g5.xlarge"],
    "needs": {"gpus": 1, "gpu_memory": "16GB", "architecture": "x86_64"},
    "spot": {"share": 0.5, "base": 1, "ceiling": 0.8, "lost_minutes": 30},
    "nodes": {"min": 0, "max": 4},
    "price_cap": {"hour": 8, "run": 60.5, "reserve": 0.1},
    "trials_per_gpu": 1,
    "gangs": {"placement_group": True, "efa": False},
    "probe": {
        "bandwidth_share": 0.5,
        "launch_microseconds": 30,
        "launch_rate": 2e4,
        "bandwidth": 300,
        "pool_share": 0.9,
        "host_share": 0.5,
        "ecc_uncorrected": 0,
    },
    "idle_minutes": 10,
    "lease_minutes": 60,
    "ami": {"eu-west-1": "ami-0123456789abcdef0", "us-east-1": "ami-0123456789abcdef1"},
    "subnets": ["subnet-0123456789abcdef0"],
    "key_pair": "me",
    "ssm": True,
    "disk": "100GB",
    "tags": {"team": "ml"},
    "manager": "10.0.0.1:9618",
    "bucket": "a-bucket",
    "autoscale": "service",
}
SMALL: dict[str, Any] = {
    "name": "demo",
    "regions": ["A", "NO"],
    "objective": {"metric": "loss", "direction": "minimize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"trials": 3, "lanes": 2},
    "trainer": {"command": "sh go.sh", "files": ["go.sh"]},
    "accelerator": "cpu",
}
DAY = "2026-11-22"
DAILY: dict[str, Any] = {
    **SMALL,
    "data": "days/{date}/{region}.npz",
    "daily": {
        "at": "02:30",
        "zone": "Europe/Oslo",
        "deadline": "1h30m",
        "wait_for_data": "3h",
        "ready_file": "_SUCCESS",
        "missed": "all",
        "unchanged": "skip",
    },
}
CHECKED: dict[str, Any] = {
    **DAILY,
    "trainer": "tabular",
    "checks": {
        "rows": "fail",
        "missing": "warn",
        "new_categories": "off",
        "target": "fail",
        "labels": "fail",
    },
}
PASSWORD = "pa55wort"
STUDIES: list[dict[str, Any]] = [
    SMALL,
    {**SMALL, "regions": {"glob": "data/*.npz"}, "publish": "models", "seed": 3, "retries": 0},
    {**SMALL, "publish": "none", "team": "ads", "usd_per_hour": 0.5},
    {**SMALL, "budget": {"trials": 4, "usd": 5, "usd_per_run": 10.5, "usd_per_day": 20}},
    {
        **SMALL,
        "storage": f"postgresql+psycopg://fleet:{PASSWORD}@db.example/trials",
        "publish": "s3://bucket/models",
        "daily": {"at": "02:30", "takeover_after": "10m"},
    },
    {**SMALL, "publish": "s3://bucket/models", "keep": {"count": 3, "days": 30}},
    {
        **SMALL,
        "publish": "models",
        "export": {
            "s3": "s3://bucket/copies",
            "mlflow": {
                "uri": "https://mlflow.example.org",
                "experiment": "of ours",
                "user": "me",
                "password_file": "rows.csv",
            },
        },
    },
    {**SMALL, "export": {"mlflow": {"uri": "https://m.example.org", "token_file": "rows.csv"}}},
    {**SMALL, "export": {"mlflow": {"uri": "http://m.example.org", "token_env": "TOKEN"}}},
    {**SMALL, "sampler": "TPESampler"},
    {**SMALL, "budget": {"trials": 5, "trials_per_job": "all", "job_minutes": 0.5}},
    {**SMALL, "budget": {"trials": 5, "trials_per_job": 2}},
    {**SMALL, "learn_from": ["flights", "runs/other/r1"]},
    {**SMALL, "gate": {"metric": "auc", "direction": "maximize", "tolerance": 0.01}},
    {**SMALL, "early_stopping": {"min_steps": 2, "max_steps": 40, "startup_trials": 3}},
    {**SMALL, "early_stopping": {"confidence": 0.8, "max_stopped": 0.5, "grace_seconds": 9}},
    {**SMALL, "gate": {"confidence": 0.9, "baseline": False}, "python": "/usr/bin/python3"},
    {**SMALL, "image": "docker://registry.example.org:5000/me/it:1", "python": "/opt/bin/python3"},
    {**SMALL, "gate": {"approve": True}},
    {
        **SMALL,
        "notify": [
            {"command": ["true"], "events": ["region-failed", "day-done"]},
            {"webhook": {"url": "https://example.org/hook", "shape": "slack"}},
            {"webhook": {"url_file": "rows.csv"}, "events": "attention"},
            {"webhook": {"url_env": "HOOK"}},
            {
                "mail": {
                    "to": ["a@example.org", "b@example.org"],
                    "sender": "c@example.org",
                    "server": "smtp.example.org:587",
                    "security": "starttls",
                    "user": "me",
                    "password_file": "rows.csv",
                }
            },
            {"mail": {"to": "a@example.org", "user": "me", "password_env": "P"}},
        ],
    },
    DAILY,
    CHECKED,
    {**DAILY, "daily": {"at": "9:05", "missed": "none", "unchanged": "train"}, "gate": {}},
    {
        **SMALL,
        "regions": {
            "A": None,
            "São Paulo": {
                "data": ["data/a.npz"],
                "priority": 3,
                "budget": {"trials": 2, "startup_trials": 1, "failures": 1},
            },
            "the other": {
                "search_space": {"epochs": 9},
                "budget": {"hours": 2, "lanes": 1, "trials_per_job": 1},
            },
        },
        "search_space": SPACE,
        "budget": {"trials": 4, "startup_trials": 2, "failures": 0},
        "data": ["data/{region}.npz"],
        "report_metric": "auc",
        "report_direction": "maximize",
        "parallel_regions": 1,
        "trainer": TRAINER,
        "resources": {
            "cpus": 1,
            "memory": "1GB",
            "disk": "1.5 GB",
            "requirements": "Memory > 1",
            "nodes": {"min": 1, "max": 2, "checkpoints": "s3://bucket/of/ours"},
        },
        "storage": f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/d",
    },
    {**SMALL, "trainer": "tabular", "search_space": {**SPACE, "kind": 3} | {"momentum": 0.5}},
    {
        **SMALL,
        "trainer": "tabular",
        "data": "table.csv",
        "target": "y",
        "table": {
            "task": "auto",
            "columns": {"x": "numeric"},
            "split": {"time": "x", "shares": [0.6, 0.2, 0.2]},
            "null_values": ["NA"],
        },
        "objective": {"metric": "val_auc", "direction": "maximize"},
        "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
    },
    {
        **SMALL,
        "trainer": "tabular",
        "data": ["table.csv"],
        "target": "x",
        "table": {"task": "regression", "split": {"random": [0.5, 0.25, 0.25]}},
    },
    {
        **SMALL,
        "trainer": "tabular",
        "data": "parts.csv",
        "target": "y",
        "table": {"columns": {"z": "ignore"}, "split": {"column": "part"}},
    },
    {
        **SMALL,
        "accelerator": "gpu",
        "resources": {"gpus": "1/2", "rank": "Memory"},
        "fleet": {key: FLEET[key] for key in ("aws_regions", "needs", "nodes", "autoscale")},
        "data": "s3://bucket/{region}.npz",
        "s3": {"access_key_id_file": "go.sh", "secret_access_key_file": "go.sh"},
        "storage": "sqlite:///trials.db",
    },
]
RESULTS: list[dict[str, Any]] = [
    {"schema": 1, "status": "complete", "metrics": {"auc": 0.5, "n": 3}, "seconds": 2.5},
    {"status": "complete", "metrics": {"auc": 1}, "device": "NVIDIA H200"},
    {"status": "failed", "error": "diverged"},
    {"auc": 0.5},
]

TEXTS = [
    "", " ", "x", "A", "true", "no", "null", "~", "1", "1/2", "-", "?", "*", "&a", "!x", "{region}",
    "{glob}", "{", "}", "[", "]", "%s", "$(X)", "$$", "$ENV(HOME)", "a,b", 'a"b', "a'b", "a\\b",
    "a|b", "a\nb", "a\tb", "a\0b", "\x1b[31m", "\u202eabc", "\u2028", "\ufeff", "é", "北京",
    "\U0001f600", "😀" * 60, "..", "../..", ".", "./go.sh", "go.sh", "data", "nix", "/dev/zero",
    "/dev/null", "fifo", "link", "/proc/self/mem", "s3://b/k", "s3://", "http://x", "file:///x",
    "x" * 300, "x" * 5000, "sqlite:///", "sqlite:///a/b.db", "sqlite:////dev/null",
    f"postgresql+psycopg://u:{PASSWORD}@h/d?x={PASSWORD}", f"postgresql+psycopg://u:a@{PASSWORD}@h",
    f"mysql://u:{PASSWORD}@h/d", "2024-01-01", "10GB", "0GB", "1e999GB", "float", "flaot", "glob",
    "latest", "parent", "eu-west-1", "g5.xlarge", "ami-00000000", "Memory >", "((", "sh 'a",
    DAY, "{date}", "data/{date}/{region}", "24:00", "2:30", "0h0m", "999h", "none", "UTC", "../UTC",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 3, 17, 101, 1001, 10_000, 10_001, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 0.5,
    -0.0, 1.5, 0.333, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 1e-9,
]  # fmt: skip
SNIPPETS = [
    "&a ", "*a", "!x ", "!!int ", "!!python/object:os.system ", "<<: ", "? ", "- ", ": ", "#", "%",
    "---\n", "...\n", "|\n", ">\n", "'", '"', "[", "]", "{", "}", ",", "\t", "\r", "\r\n", "\0",
    "\x85", "\u2028", "\ufeff", "\x1b[2J", "\u202e", "\\x", "\\ud800", "0x", "0o8", "1_0", "@", "`",
    "9" * 5000, "[" * 50, "- " * 40, "\n" * 3, " " * 9,
]  # fmt: skip
Path = tuple[Any, ...]


def study(random: Random) -> bytes:
    """Return the bytes of a study file."""
    return _file(random, random.choice(STUDIES))


def fleet(random: Random) -> bytes:
    """Return the bytes of a file with a fleet."""
    alone = {key: value for key, value in FLEET.items() if key == "aws_regions" or chance(random)}
    alone.pop(random.choice(["needs", "instance_types"]), None)  # both together are refused
    if chance(random):
        return _file(random, {"name": "demo", "fleet": alone})
    return _file(random, {"name": "gpus", **alone})


def result(random: Random) -> bytes:
    """Return the bytes of a result.json."""
    tree = _mutated(random, random.choice(RESULTS))
    try:
        text = json.dumps(tree, default=str, ensure_ascii=chance(random))
    except ValueError:
        text = "{}"
    return _damaged(random, text.encode("utf-8", "surrogatepass"), 0.15)


def value(random: Random) -> Any:
    """Any value that a file may hold."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(TEXTS)
    if kind < 5:
        return random.choice(NUMBERS)
    if kind == 5:
        return random.choice([None, True, False])
    if kind == 6:
        return [value(random) for _ in range(random.randrange(4))]
    return {str(random.choice(TEXTS)): value(random) for _ in range(random.randrange(3))}


def moment(random: Random) -> datetime:
    """Return a time of the next years, with the days on which clocks are set among them."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randrange(10**7))


def chance(random: Random, of: float = 0.5) -> bool:
    """Return True with this probability."""
    return random.random() < of


def _file(random: Random, tree: dict[str, Any]) -> bytes:
    text = io.StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = random.choice([None, False, True])
    writer.allow_unicode = chance(random)
    mutated = _mutated(random, tree)
    try:
        writer.dump(mutated, text)
    except RecursionError:  # deeper than its writer can go
        return _damaged(random, b"[" * 2000, 0.15)
    return _damaged(random, text.getvalue().encode("utf-8", "surrogatepass"), 0.15)


def _mutated(random: Random, tree: Any) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(random.choice([0, 0, 1, 1, 1, 2, 5])):
        places = list(_places(tree))
        if places:
            random.choice(MUTATIONS)(random, *random.choice(places))
    return tree


def _places(tree: Any) -> Any:
    """Every (container, key) of a tree."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _replace(random: Random, within: Any, key: Any) -> None:
    within[key] = value(random)


def _remove(random: Random, within: Any, key: Any) -> None:
    del random, within[key]


def _rename(random: Random, within: Any, key: Any) -> None:
    if isinstance(within, dict):
        name = list(str(key) or "x")
        name[random.randrange(len(name))] = random.choice("abcxyz_- ")
        within[random.choice(["".join(name), str(random.choice(TEXTS))])] = within.pop(key)


def _wrap(random: Random, within: Any, key: Any) -> None:
    within[key] = [within[key]] if chance(random) else {"x": within[key]}


def _deepen(random: Random, within: Any, key: Any) -> None:
    for _ in range(random.choice([3, 20, 40, 120])):
        within[key] = [within[key]]


def _multiply(random: Random, within: Any, key: Any) -> None:
    if isinstance(within, list):
        within.extend([within[key]] * random.choice([1, 3, 200]))
    else:
        for i in range(random.choice([1, 3, 200])):
            within[f"{key}{i}"] = within[key]


def _add(random: Random, within: Any, key: Any) -> None:
    if isinstance(within, list):
        within.insert(random.randrange(len(within) + 1), value(random))
    else:
        within[str(random.choice(TEXTS))] = value(random)


def _nudge(random: Random, within: Any, key: Any) -> None:
    if isinstance(within[key], int | float) and not isinstance(within[key], bool):
        within[key] = random.choice([-within[key], within[key] * 10, within[key] + 1, 0])
    elif isinstance(within[key], str):
        at = random.randrange(len(within[key]) + 1)
        within[key] = within[key][:at] + str(random.choice(TEXTS)) + within[key][at:]


MUTATIONS: list[Callable[[Random, Any, Any], None]] = [
    _replace, _replace, _replace, _remove, _rename, _wrap, _deepen, _multiply, _add, _nudge, _nudge,
]  # fmt: skip


def _damaged(random: Random, content: bytes, often: float) -> bytes:
    while chance(random, often):
        at = random.randrange(len(content) + 1)
        end = min(len(content), at + random.randrange(1, 30))
        what = random.randrange(5)
        if what == 0:
            content = content[:at] + content[end:]
        elif what == 1:
            content = content[:at] + content[at:end] * random.choice([2, 100]) + content[end:]
        elif what == 2:
            content = content[:at] + random.randbytes(random.randrange(1, 5)) + content[at:]
        elif what == 3:
            content = content[:at]
        else:
            snippet = random.choice(SNIPPETS).encode("utf-8", "surrogatepass")
            content = content[:at] + snippet + content[at:]
    return content
