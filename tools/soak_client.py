"""Requests of every API as plain bytes on a socket, and what became of them; also clients that leave in the middle."""

import json
import random
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

_TEXT = "the river runs over stones and under a bridge where children watch what is 12 + 7 tell me a story about"


@dataclass(frozen=True)
class Request:
    """One request; `end` is in the last bytes of a streamed answer that came to its end."""

    path: str
    body: dict[str, Any]
    end: bytes = b""


@dataclass(frozen=True)
class Outcome:
    """`kind`: ok, left (the client did), engine_failed, gone (the connection broke), hang, or what was wrong."""

    kind: str
    seconds: float
    text: str


FIXED = Request("/v1/chat/completions", {
    "messages": [{"role": "user", "content": "What is 48 - 19?"}], "temperature": 0, "max_tokens": 24})  # fmt: skip


def random_request(rng: random.Random, *, long: bool = False) -> Request:
    """Any API, streamed or whole; a few words, or so many that the client will have left before the end."""
    text = " ".join(rng.choices(_TEXT.split(), k=rng.choice((3, 10, 120))))
    messages, stream, tokens = [{"role": "user", "content": text}], rng.random() < 0.7, 500 if long else rng.randint(1, 24)
    common = {"stream": stream, "temperature": rng.choice((0, 0.8)), "seed": rng.randint(1, 99)}
    kind = rng.randrange(3)
    if kind == 0:
        body = {**common, "messages": messages, "max_tokens": tokens}
        return Request("/v1/chat/completions", body, b"data: [DONE]" if stream else b"")
    if kind == 1:
        body = {**common, "messages": messages, "max_tokens": tokens, "model": "any"}
        return Request("/v1/messages", body, b"message_stop" if stream else b"")
    body = {**common, "prompt": text, "n_predict": tokens}
    return Request("/completion", body, b'"stop":true' if stream else b"")


def ask(port: int, request: Request, *, timeout_s: float, leave_s: float | None = None) -> Outcome:
    """Send and read to the end, or go away after a time."""
    began_s = time.monotonic()

    def outcome(kind: str, text: bytes = b"") -> Outcome:
        return Outcome(kind, time.monotonic() - began_s, text.decode("utf-8", "replace"))

    body = json.dumps(request.body).encode()
    head = f"POST {request.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = b""
    try:
        first_s = timeout_s if leave_s is None else leave_s + 0.001
        with socket.create_connection(("127.0.0.1", port), timeout=first_s) as connection:
            connection.sendall(head.encode() + body)
            while chunk := connection.recv(1 << 16):
                answer += chunk
                left_s = (timeout_s if leave_s is None else leave_s) - (time.monotonic() - began_s)
                if left_s <= 0:
                    raise TimeoutError
                connection.settimeout(left_s)
    except TimeoutError:
        return outcome("hang" if leave_s is None else "left", answer)
    except OSError:
        return outcome("gone", answer)
    return _judge(request, answer, outcome)


def _judge(request: Request, answer: bytes, outcome: Any) -> Outcome:
    """What a whole answer is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.\d (\d+)", head)
    if status is None:
        return outcome("gone", answer)
    failed = b"engine_failed" in body or b"the engine" in body or b"Restarting" in body
    if (code := status.group(1).decode()) != "200":
        return outcome("engine_failed" if failed and code in ("503", "500", "529") else f"status {code}", body)
    if b'"error"' in body:
        return outcome("engine_failed" if failed else "error", body)
    if request.end and request.end not in body:
        return outcome("no end", body[-200:])
    if not request.end:
        return outcome("ok", _text(body))
    return outcome("ok", body)


def _text(body: bytes) -> bytes:
    """The reply's text of a whole answer, without what differs from time to time."""
    data = json.loads(body)
    if "choices" in data:
        return json.dumps(data["choices"][0]["message"]).encode()
    return body
