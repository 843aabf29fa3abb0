"""AWS's faults, for a boto3 session: refusals, throttling, and a killed program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from itertools import count
from typing import Any, Protocol, TypeVar

import boto3
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

Body = dict[str, Any]
_THROTTLED = ("RequestLimitExceeded", 503)
_ANSWER = """<?xml version="1.0"?><Response><Errors><Error><Code>{}</Code>
<Message>said the test</Message></Error></Errors><RequestID>r</RequestID></Response>"""


class Killed(BaseException):
    """The program was killed; no `except Exception` sees it."""


class HasFaults(Protocol):
    """An account, or what has one."""

    @property
    def faults(self) -> Faults: ...


Scene = TypeVar("Scene", bound=HasFaults)


def kills(
    every: int,
    new: Callable[[], AbstractContextManager[Scene]],
    act: Callable[[Scene], object],
    *before: Callable[[Scene], object],
) -> Iterator[tuple[Scene, str]]:
    """Kill an act after each n-th of its calls in turn, each time in a new account."""
    for n in count(1, every):
        with new() as scene:
            for step in before:
                step(scene)
            scene.faults.kill_after(n)
            try:
                act(scene)
            except Killed as killed:
                scene.faults.kill_after(0)
                yield scene, f"killed after call {n}, {killed}"
            else:
                assert n > 20, "the act asks AWS for so little that nothing was tested"
                return


@dataclass
class _Refusal:
    operation: str
    code: str
    message: str
    status: int
    when: Callable[[Body], bool]
    times: int
    aws_region: str

    def answers(self, operation: str, body: Body, url: str) -> bool:
        if self.times == 0 or operation != self.operation or not self.when(body):
            return False
        if self.aws_region not in url:
            return False
        self.times -= 1
        return True


@dataclass
class _Status:
    status_code: int


class Faults:
    """Stands between a session's clients and moto."""

    def __init__(self, session: boto3.Session) -> None:
        self.calls: list[str] = []  # as policies name them, such as ec2:RunInstances
        self._asked: list[tuple[str, Body]] = []
        self.reset()
        session.events.register_first("before-call", self._before_call)
        session.events.register_first("before-send", self._before_send)
        session.events.register("after-call", self._after_call)

    def reset(self) -> None:
        """Let all be well again."""
        self.calls.clear()
        self._asked.clear()
        self._refusals: list[_Refusal] = []
        self._answers: dict[str, list[tuple[str, int]]] = {}
        self._kill_after = 0

    def refuse(
        self,
        operation: str,
        code: str,
        message: str = "said the test",
        *,
        when: Callable[[Body], bool] = lambda _: True,
        times: int = -1,
        status: int = 400,
        aws_region: str = "",
    ) -> None:
        """Answer an operation with an error, `times` times (or always), in a region (or all)."""
        self._refusals.append(_Refusal(operation, code, message, status, when, times, aws_region))

    def throttle(self, operation: str, times: int) -> None:
        """Let an operation's first tries exceed the request limit."""
        self.answer(operation, *[_THROTTLED] * times)

    def answer(self, operation: str, *answers: tuple[str, int]) -> None:
        """Answer the first tries of an operation with code and HTTP status; botocore sees them."""
        self._answers[operation] = list(answers)

    def kill_after(self, calls: int) -> None:
        """Kill the program after this number of answered calls, counted from here; 0: never."""
        self.calls.clear()
        self._kill_after = calls

    def asked(self, operation: str) -> list[Body]:
        """Return what was asked of an operation, refused or not."""
        return [body for name, body in self._asked if name == operation]

    def _before_call(self, model: Any, params: Any, **_: Any) -> Any:
        body = params["body"] if isinstance(params["body"], dict) else {}
        self._asked.append((model.name, body))
        for refusal in self._refusals:
            if refusal.answers(model.name, body, params["url"]):
                error = {"Error": {"Code": refusal.code, "Message": refusal.message}}
                return _Status(refusal.status), error
        return None

    def _before_send(self, event_name: str, request: Any, **_: Any) -> Any:
        operation = event_name.rpartition(".")[2]
        if not self._answers.get(operation):
            return None
        code, status = self._answers[operation].pop(0)
        body: Any = _Raw(_ANSWER.format(code).encode())
        answer = AWSResponse(request.url, status, HTTPHeaders(), body)
        request.url = "https://throttled.invalid/"  # moto, which is asked next, must not act on it
        return answer

    def _after_call(self, model: Any, **_: Any) -> None:
        self.calls.append(f"{model.service_model.service_name}:{model.name}")
        if len(self.calls) == self._kill_after:
            raise Killed(self.calls[-1])


class _Raw(BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()
