"""Lines out of a byte stream, however it is cut, and which request a STOP hits."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import stdio
from engine.messages import BadCommand, Pong, Stop
from engine.protocol import MAX_LINE_BYTES
from engine.stdio import ClientGone, Inbox, LineWriter, Ticket, read_lines
from tests.protocol.driver import MOCK_ENGINE, ROOT, TIMEOUT_S


def _lines_of(pieces: list[bytes]) -> list[bytes | BadCommand]:
    """What is read when the pieces are written one by one."""
    reading, writing = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    lines = list(read_lines(reading))
    writer.join()
    os.close(reading)
    return lines


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=9), max_size=8), st.integers(1, 7), st.booleans())
def test_lines_do_not_depend_on_how_the_stream_is_cut(parts: list[bytes], size: int, ended: bool) -> None:
    stream = b"\n".join(parts) + b"\n" * ended
    expected = stream.split(b"\n")
    if expected[-1] == b"":
        expected.pop()  # nothing behind the last newline is no line
    assert _lines_of([stream[i : i + size] for i in range(0, len(stream), size)]) == expected


@pytest.mark.parametrize("excess", [0, 1, 2, 5_000_000])
def test_the_limit_of_a_line(excess: int) -> None:
    stream = b"GEN 1 id=x 5" + b"," * (MAX_LINE_BYTES - 12 + excess) + b"\nPING\n"
    reading, writing = os.pipe()
    threading.Thread(target=_write_all, args=(writing, stream)).start()
    first, second = read_lines(reading)
    os.close(reading)
    assert second == b"PING"
    if excess <= 1:  # a carriage return may be the one too many; the parser decides
        assert isinstance(first, bytes)
        assert len(first) == MAX_LINE_BYTES + excess
    else:
        assert isinstance(first, BadCommand)
        assert first.request_id == "x"
        assert str(MAX_LINE_BYTES + excess) in str(first)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


def test_an_over_long_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 10_000)
    lines = _lines_of([b"x" * 4000] * 10 + [b"\nok\n"])
    assert isinstance(lines[0], BadCommand)
    assert "this one has 40000" in str(lines[0])
    assert lines[1:] == [b"ok"]


def test_a_writer_without_a_reader_says_so() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(ClientGone):
        LineWriter(writing).write([Pong("x")])
    os.close(writing)


def _tickets(inbox: Inbox, *lines: bytes) -> list[Ticket]:
    tickets = [Ticket(line) for line in lines]
    for ticket in tickets:
        inbox.put(ticket)
    return tickets


def test_stop_hits_the_oldest_unfinished_request_of_that_name() -> None:
    inbox = Inbox()
    malformed = Ticket(b"", error=BadCommand("no", request_id="b"))
    inbox.put(malformed)
    a, b, again = _tickets(inbox, b"GEN 1 id=a 1", b"GEN 1 id=b 1", b"GEN 1 id=b 1")
    inbox.stop(Stop(id="b", keep=3))
    assert [ticket.cancelled for ticket in (malformed, a, b, again)] == [False, False, True, False]
    assert (b.keep, again.keep) == (3, None)
    inbox.stop(Stop())
    assert a.cancelled
    assert inbox.take() is malformed
    assert inbox.take() is a
    inbox.finish()
    assert inbox.take() is b
    inbox.finish()
    inbox.stop(Stop(id="b"))
    assert again.cancelled


def test_a_finished_request_takes_no_stop_from_the_next() -> None:
    inbox = Inbox()
    (a,) = _tickets(inbox, b"GEN 1 1")
    assert inbox.take() is a
    inbox.finish()
    inbox.stop(Stop())
    (b,) = _tickets(inbox, b"GEN 1 2")
    inbox.stop(Stop())
    assert (a.cancelled, b.cancelled) == (False, True)


def test_a_closed_inbox_empties_then_ends() -> None:
    inbox = Inbox()
    (a,) = _tickets(inbox, b"GEN 1 1")
    inbox.close()
    _tickets(inbox, b"GEN 1 2")
    assert inbox.waiting == 1
    assert inbox.take() is a
    assert inbox.take() is None


def test_pipes_that_were_left_non_blocking_are_made_blocking() -> None:
    with _engine_on_non_blocking_pipes() as (process, writing, reading):
        lines = iter(reading.readline, b"")
        assert any(line.startswith(b"READY") for line in lines)
        os.write(writing, b"GEN 2 5,6,7\nQUIT\n")
        assert any(line.startswith(b"DONE 2 3") for line in lines)
        assert process.wait(TIMEOUT_S) == 0


@contextmanager
def _engine_on_non_blocking_pipes() -> Iterator[tuple[subprocess.Popen[bytes], int, BinaryIO]]:
    """The mock engine, the descriptor to write commands to, and the stream of its output."""
    stdin_reading, stdin_writing = os.pipe()
    stdout_reading, stdout_writing = os.pipe()
    os.set_blocking(stdin_reading, False)
    os.set_blocking(stdout_writing, False)
    process = subprocess.Popen(
        MOCK_ENGINE, stdin=stdin_reading, stdout=stdout_writing, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    os.close(stdin_reading)
    os.close(stdout_writing)
    with os.fdopen(stdout_reading, "rb") as reading:
        try:
            yield process, stdin_writing, reading
        finally:
            process.kill()
            process.wait()
            os.close(stdin_writing)
