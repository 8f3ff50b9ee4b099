"""Lines from chunks, and lines that are too long."""

from gateway.lines import LineSplitter, TooLong


def shown(lines: list[bytes | TooLong]) -> list[bytes | str]:
    return ["too long" if isinstance(line, TooLong) else line for line in lines]


def test_every_split_gives_the_same() -> None:
    data = b"T 1\nT 22\r\n\nlong long line\nDONE\nrest"
    expected = [b"T 1", b"T 22", b"", "too long", b"DONE"]
    for size in range(1, len(data) + 1):
        splitter = LineSplitter(10)
        lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
        assert shown(lines) == expected
        assert shown(splitter.feed(b"\n")) == [b"rest"]


def test_a_huge_line_is_not_kept() -> None:
    splitter = LineSplitter(1000)
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter._parts) <= 1
    assert shown(splitter.feed(b"\nT 1\n")) == ["too long", b"T 1"]
