"""Messages of the agents of a run's jobs, and the answers: noticed when written, and kept.

A thread watches the folders `words/`, into which agents and service write, by inotify. So the storm
knows what had arrived when a process was killed, and can kill one at such a moment.
"""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from inotify_simple import INotify, flags

from trialfleet.nodes import ENDED

Moment = Literal["asked", "arrived", "told", "answered"]
MOMENTS: tuple[Moment, ...] = ("asked", "arrived", "told", "answered")
LOOK_MS = 200  # between two looks for new folders
_PACKAGE = ".result.tar"


@dataclass(frozen=True)
class Word:
    """A message or an answer.

    Attributes:
        time: when it was written, by `time.monotonic`.
        moment: asked: an agent asks for a trial; arrived: a trial's package is there; told: the
            agent has also reported the trial's end; answered: the agent has an order.
        region: name of the region's folder.
        node: the DAG node.
        job: the HTCondor job, such as 12.0; empty if unknown.
        trial: the trial's name, of a package or an end.
        code: the trial's exit code; None if its package was removed before it was read.
    """

    time: float
    moment: Moment
    region: str
    node: str
    job: str
    trial: str = ""
    code: int | None = 0


class Words:
    """All messages and answers of the run in a folder, from now on."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._inotify = INotify()
        self._folders: dict[int, Path] = {}
        self._known: set[Path] = set()
        self._new = threading.Condition()
        self._is_over = False
        self.all: list[Word] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch."""
        self._is_over = True
        self._thread.join()
        self._inotify.close()

    def next(self, moments: Container[str], seconds: float) -> Word | None:
        """Wait for the next message at one of `moments`; None if none comes in time."""
        deadline = time.monotonic() + seconds
        with self._new:
            seen = len(self.all)
            while True:
                for word in self.all[seen:]:
                    if word.moment in moments:
                        return word
                seen = len(self.all)
                if not self._new.wait(deadline - time.monotonic()):
                    return None

    def _listen(self) -> None:
        while not self._is_over:
            for folder in self._run.glob("regions/*/trials/*/words"):
                if folder not in self._known:
                    self._known.add(folder)
                    with suppress(OSError):
                        self._folders[self._inotify.add_watch(folder, flags.MOVED_TO)] = folder
            for event in self._inotify.read(timeout=LOOK_MS):
                if event.wd in self._folders:
                    self._note(self._folders[event.wd], event.name)

    def _note(self, folder: Path, name: str) -> None:
        found = list(_words(folder, name))
        if found:
            with self._new:
                self.all += found
                self._new.notify_all()
        if name.endswith(_PACKAGE):  # a reader that waits for it has no time to lose
            self.all[-1] = replace(self.all[-1], code=_code(folder / name))


def _words(folder: Path, name: str) -> Iterator[Word]:
    """Yield the messages in a file that has just been written."""
    region, node = folder.parts[-4], folder.parts[-2]
    now, said = time.monotonic(), _json(folder / "agent.json")
    who = (region, node, str(said.get("job", "")))
    if name.endswith(_PACKAGE):
        yield Word(now, "arrived", *who, name.removesuffix(_PACKAGE), None)
    elif name == "order.json" and (order := _json(folder / name)).get("token"):
        yield Word(now, "answered", *who, str(order.get("name", "")))
    elif name == "agent.json" and said.get("say") == "ask":
        yield Word(now, "asked", *who)
    elif name == "agent.json" and said.get("say") == "ended":
        yield Word(now, "told", *who, str(said["trial"]), int(said["code"]))


def _code(package: Path) -> int | None:
    try:
        with tarfile.open(package) as tar, tar.extractfile(ENDED) or BytesIO() as file:
            return int(json.load(file)["code"])
    except (OSError, tarfile.TarError, KeyError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}
