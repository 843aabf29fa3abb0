"""Names of regions, and slugs made from them that are safe in DAG files and file systems.

A region may have almost any name that a person would write, such as São Paulo. DAGMan, HTCondor and
the file system use its *slug*: at most 40 ASCII letters, digits, `-` and `_`. Different regions
have different slugs, and a region always has the same slug.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

MAX_REGION_NAME = 200
NO_MODELS = "none"  # value of a study's `publish:`; write ./none for a folder named "none"
# Control characters that make a terminal or a page show text in another order.
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_PLAIN_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
# Reserved words of a DAG file (DAGMan ignores their case).
_RESERVED = frozenset({"parent", "child", "all_nodes", "optimizer", "report", "fleet"})


def check_region_name(name: str) -> str:
    """Return `name` if a region may have it.

    Raises:
        ValueError: the name is empty or too long, starts or ends with a blank, or has characters
            that don't print.
    """
    if not name or name != name.strip():
        raise ValueError(f"region name {name!r} must not be empty, nor begin or end with a blank")
    if len(name) > MAX_REGION_NAME:
        raise ValueError(
            f"region name {name[:40]!r}… has {len(name)} characters; at most {MAX_REGION_NAME}"
        )
    bad = [c for c in name if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} or c in TURNING]
    if bad:
        raise ValueError(f"region name {name!r} has a character that does not print: {bad[0]!r}")
    return name


def region_slug(name: str) -> str:
    """Return the slug of a region: `name` if it is a valid slug, else its ASCII form and a hash."""
    if _PLAIN_SLUG.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", ascii_form).strip("-_")[:30].rstrip("-_") or "region"
    content = name.encode("utf-8", "surrogatepass")  # a name typed in another encoding is looked up
    return f"{readable}-{hashlib.sha256(content).hexdigest()[:8]}"
