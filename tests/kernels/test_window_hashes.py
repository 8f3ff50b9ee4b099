"""--window-hashes: a line a window, by which two runs can be compared."""

import logging
import re

import numpy as np

from tests.kernels.conftest import open_session
from tools.make_tiny_gguf import write_tiny

LINE = re.compile(r"window at=(\d+) tokens=(\d+) read=([0-9a-f]{16}) logits=([0-9a-f]{16})")


def hashes(path, caplog, chunks: list[list[int]], **settings) -> list[tuple[str, ...]]:
    """What a session says of the windows in which it reads the chunks."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "terrace.engine"), open_session(path, max_context=64, **settings) as session:
        for chunk in chunks:
            assert session.step(np.array(chunk, np.int32), logits="none") is None
    return [match.groups() for record in caplog.records if (match := LINE.fullmatch(record.getMessage()))]


def test_two_runs_part_where_their_tokens_do(tmp_path, caplog):
    path = write_tiny(tmp_path / "m.gguf", arch="qwen3moe")[0]
    first = hashes(path, caplog, [[1, 2, 3], [4], [5]], window_hashes=True)
    assert [line[:2] for line in first] == [("0", "3"), ("3", "1"), ("4", "1")]
    assert hashes(path, caplog, [[1, 2, 3], [4], [5]], window_hashes=True) == first
    # another text in the middle: the last window reads the same token, but its logits are others
    other = hashes(path, caplog, [[1, 2, 3], [6], [5]], window_hashes=True)
    assert other[0] == first[0]
    assert other[1][2] != first[1][2]
    assert other[2][2] == first[2][2]
    assert other[2][3] != first[2][3]
    # the same text in one window ends with the same logits
    assert hashes(path, caplog, [[1, 2, 3, 4, 5]], window_hashes=True)[0][3] == first[2][3]
    assert hashes(path, caplog, [[1, 2, 3]]) == []
