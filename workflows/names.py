"""Names of regions, made safe for DAG files, submit files and file systems.

A region's name may have spaces, quotes and letters of any language, such as `São Paulo`. DAGMan,
HTCondor and the file system see the region's *slug*: 1 to 40 ASCII letters, digits, `-` and `_`. A
name always has the same slug. A study is refused if two of its regions have the same slug.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator

MAX_REGION_NAME = 200
NO_MODELS = "none"  # the value of `publish` for tuning only; a folder of that name is ./none
# Marks after which a terminal or a page shows text in another order than it is written.
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_PLAIN_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
# Reserved words of a DAG file (DAGMan ignores their case).
_RESERVED = frozenset({"parent", "child", "all_nodes", "optimizer", "report", "fleet"})


def check_region_name(name: str) -> str:
    """Return `name` if it may be a region's name; ValueError if not."""
    if not name or name != name.strip():
        raise ValueError(f"region name {name!r} is empty, or begins or ends with a blank")
    if name[0] in "./" or "://" in name:  # commands take such a word for a path or a URL
        raise ValueError(
            f"region name {name!r} begins with '.' or '/', or contains '://'; choose another name"
        )
    if len(name) > MAX_REGION_NAME:
        raise ValueError(
            f"region name {name[:40]!r}… has {len(name)} characters; at most "
            f"{MAX_REGION_NAME} are allowed"
        )
    bad = [c for c in name if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} or c in TURNING]
    if bad:
        raise ValueError(f"region name {name!r} has a character that does not print: {bad[0]!r}")
    return name


def region_slug(name: str) -> str:
    """Return the slug of a region, a name that is safe in files and paths.

    A name that looks like a slug is its own slug, unless it is a reserved word of DAG files. The
    slug of any other name is an ASCII form of the name, followed by a hash of it.
    """
    if _PLAIN_SLUG.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", ascii_form).strip("-_")[:30].rstrip("-_") or "region"
    content = name.encode("utf-8", "surrogatepass")  # a name may be typed in another encoding
    return f"{readable}-{hashlib.sha256(content).hexdigest()[:8]}"


def doubled_names(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and an error text for each name with the same slug as an earlier name."""
    first: dict[str, str] = {}
    for i, name in enumerate(names):
        slug = region_slug(name)
        if slug not in first:
            first[slug] = name
        elif first[slug] == name:
            yield i, f"region {name!r} is listed twice"
        else:
            yield (
                i,
                f"regions {first[slug]!r} and {name!r} would share the folder {slug!r}: rename one",
            )
