"""The blocks of qwen4exp one by one: against float64, and the same bits for every cut into windows."""

import json
from dataclasses import replace
from pathlib import Path

import flash_reference as reference
import numpy as np
import pytest
from flash_blocks import block, random_weights, tensor, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from products import dequantize, random_weight

from engine.backend import base
from engine.backend.cpu import delta_net, sparse
from engine.backend.cpu.blocks import indexer
from engine.backend.cpu.blocks import ngram as ngram_block
from engine.errors import BadModel

EPS = 1e-6
HASHES = json.loads((Path(__file__).parents[1] / "goldens" / "ple_hash.json").read_text())


def tensors(weights: dict[str, np.ndarray]) -> dict:
    return {role: tensor(role, values) for role, values in weights.items()}


def doubles(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {role: values.astype(np.float64) for role, values in weights.items()}


def close(ours: np.ndarray, exact: np.ndarray, bound: float = 2e-6) -> None:
    """Within `bound` of the largest value."""
    assert np.abs(ours - exact).max() <= bound * np.abs(exact).max()


@pytest.mark.parametrize("inject", [True, False])
def test_hyper_connection(inject):
    streams, width, rank = 3, 272, 20  # more than a task of columns
    shapes = {"norm": (streams * width,), "down": (rank, streams * width), "up": (streams * width, rank)}
    weights = random_weights(1, shapes | ({"inject": (streams, streams * width)} if inject else {}))
    spec = base.HyperConnection(streams, EPS)
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(9, streams * width)) * 3, rng.normal(size=(9, width))

    def record(b, x, y):
        mixed, weight = b.hyper_read(x, spec, tensors(weights))
        return [mixed, weight, b.hyper_write(x, y, weight)] if inject else [mixed]

    with block(record, {"x": streams * width, "y": width}) as run:
        ours = run(x=x, y=y)
    mixed, weight = reference.hyper_read(x, doubles(weights), spec)
    close(ours[0], mixed)
    if inject:
        close(ours[1], weight)
        close(ours[2], reference.hyper_write(x, y, weight))


@pytest.mark.parametrize("dim, gate", [(16, "sigmoid"), (64, "silu"), (128, "sigmoid")])
def test_delta_net(dim, gate):
    spec = base.DeltaNet(key_heads=2, value_heads=6, head_dim=dim, conv_taps=4, eps=EPS, output_gate=gate)
    width, channels, n = 48, 10 * dim, 40
    weights = random_weights(dim, {
        "qkv": (channels, width), "z": (6 * dim, width), "beta": (6, width), "alpha": (6, width), "a": (6,), "dt": (6,),
        "conv": (channels, 4), "norm": (dim,), "output": (width, 6 * dim)})
    weights["a"] *= np.float32(-0.3)
    weights["dt"] = np.array([-30, -3, 0, 1, 5, 40], np.float32)  # softplus from nothing to the straight line
    x = np.random.default_rng(3).normal(size=(n, width)).astype(np.float32)

    def record(b, x):
        return [b.delta_net(x, spec, tensors(weights))]

    with block(record, {"x": width}, workers=3) as run:
        (whole,) = run(x=x)
        kept = [entry.array.copy() for entry in run.backend.state]
        for entry in run.backend.state:
            entry.array.fill(0)
        parts = [run(position=start, x=x[start:stop])[0] for start, stop in windows(n, dim, 6)]
        assert all(np.array_equal(a, entry.array) for a, entry in zip(kept, run.backend.state, strict=True))
    assert np.array_equal(np.concatenate(parts), whole)
    close(whole, reference.delta_net(x.astype(np.float64), doubles(weights), spec), 1e-5)


def test_softplus():
    x = np.concatenate([np.linspace(-80, 80, 3001), np.linspace(-1, 1, 1001)]).astype(np.float32)
    ours = np.array([delta_net.softplus(v) for v in x])
    exact = np.logaddexp(0, x.astype(np.float64))
    assert (np.abs(ours - exact) <= 4e-7 * exact).all()


def test_delta_net_refuses_heads_that_do_not_go_together():
    spec = base.DeltaNet(key_heads=2, value_heads=6, head_dim=16, conv_taps=4, eps=EPS, output_gate="silu")
    for wrong in (replace(spec, head_dim=24), replace(spec, value_heads=5)):
        with pytest.raises(BadModel), block(lambda b, x, wrong=wrong: b.delta_net(
                x, wrong, {"qkv": tensor("qkv", np.zeros((8, 8)))}), {"x": 8}):
            pass


INDEX = base.Indexer(heads=3, dim=32, block=4, budget=20)
SPARSE = base.Attention(heads=4, kv_heads=2, head_dim=16, value_dim=16, scale=0.25, eps=EPS, rope=base.Rope(8, 1e4),
                        gated=True, indexer=INDEX)


def index_weights(width: int, seed: int) -> dict[str, np.ndarray]:
    return random_weights(seed, {"indexer_q": (INDEX.heads * INDEX.dim, width), "indexer_k": (INDEX.dim, width),
                                 "indexer_q_norm": (INDEX.dim,), "indexer_k_norm": (INDEX.dim,)})


@pytest.mark.parametrize("ties", [False, True])
def test_chosen_cells(ties):
    width, n = 24, 150
    spec = replace(SPARSE, rope=None) if ties else SPARSE
    weights = index_weights(width, 5)
    x = np.random.default_rng(6).normal(size=(n, width)).astype(np.float32)
    if ties:  # blocks of one vector each out of three, so many scores are equal to the bit, and some are zero
        x = np.repeat(x[np.random.default_rng(7).integers(0, 3, n // 4 + 1)], 4, axis=0)[:n]

    def record(b, x):
        return [indexer.select_cells(b, x, spec, tensors(weights))]

    expected = reference.chosen_cells(x.astype(np.float64), doubles(weights), spec)
    with block(record, {"x": width}, context=160) as run:
        for seed in (1, 2, 3):
            cells = [row for start, stop in windows(n, seed, 64) for row in run(position=start, x=x[start:stop])[0]]
            for row, cells_of_token in zip(cells, expected, strict=True):
                assert row[1:1 + row[0]].tolist() == cells_of_token.tolist()
    assert len(row) == 1 + INDEX.budget + INDEX.block - 1


def test_index_of_a_text_that_was_cut_back():
    width, n = 24, 100
    weights = index_weights(width, 8)
    rng = np.random.default_rng(9)
    first, x = (rng.normal(size=(n, width)).astype(np.float32) for _ in range(2))
    x[:50] = first[:50]  # 50 is inside a block

    def record(b, x):
        return [indexer.select_cells(b, x, SPARSE, tensors(weights))]

    with block(record, {"x": width}, context=128) as run:
        for start, stop in ((0, 60), (60, 100)):
            run(position=start, x=first[start:stop])
        (cells,) = run(position=50, x=x[50:])
    for row, expected in zip(cells, reference.chosen_cells(x.astype(np.float64), doubles(weights), SPARSE)[50:], strict=True):
        assert row[1:1 + row[0]].tolist() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-45, 1e-38, 0.5, 1.0, 1.0000001, 3.0, 1e30, float("inf")]), min_size=2, max_size=40),
       st.data())
def test_threshold(values, data):
    scores, histogram = np.array(values, np.float32), np.zeros(2048, np.int32)
    keep = data.draw(st.integers(1, len(values) - 1))
    least, greater = sparse.threshold(scores.ctypes.data, len(scores), keep, histogram.ctypes.data)
    assert least == np.sort(scores)[::-1][keep - 1].view(np.int32)
    assert greater == (scores.view(np.int32) > least).sum()


def test_sparse_attention_where_every_cell_is_seen_is_the_dense_one():
    width, n = 24, 20
    plain = random_weights(11, {
        "q": (128, width), "k": (32, width), "v": (32, width), "output": (width, 64), "q_norm": (16,), "k_norm": (16,)})
    weights = index_weights(width, 10) | plain
    x = np.random.default_rng(12).normal(size=(n, width)).astype(np.float32)
    results = []
    for spec, chosen in ((SPARSE, weights), (replace(SPARSE, indexer=None), plain)):
        with block(lambda b, x, spec=spec, chosen=chosen: [b.attention(x, spec, tensors(chosen))], {"x": width}) as run:
            results.append(run(x=x)[0])
    assert np.array_equal(*results)
    close(results[0], reference.attention(x.astype(np.float64), doubles(weights), SPARSE))


TABLE = base.NgramTable(
    multipliers=(7919, 104729, 1299709), head_sizes=(11, 13, 17, 19), head_offsets=(0, 11, 24, 41), heads_per_ngram=2,
    row_width=8, conv_taps=4, dilation=3, reset_token=2, streams=2, eps=EPS)


def test_ngram():
    width, n = 32, 50
    wide = TABLE.streams * width
    weights = random_weights(13, {
        "table": (60, 8), "key": (wide, 32), "value": (width, 32), "norm_key": (wide,), "norm_query": (wide,),
        "norm_conv": (wide,), "conv": (wide, 4)})
    tokens = np.random.default_rng(14).integers(0, 6, n).astype(np.int32)  # resets are frequent, also two in a row
    x = np.random.default_rng(15).normal(size=(n, wide)).astype(np.float32)
    x[7] = 0  # its score is zero
    x[8:11] *= np.array([[1e-6], [1e-8], [1e-11]], np.float32)  # scores on both sides of the root's floor

    def record(b, x):
        return [b.ngram(x, TABLE, tensors(weights))]

    with block(record, {"x": wide}) as run:
        results = []
        for seed in (1, 2):
            for entry in run.backend.state:
                if not entry.positional:
                    entry.array.fill(0)
            run.backend.history[:n] = tokens
            results.append(np.concatenate([run(position=start, x=x[start:stop])[0] for start, stop in windows(n, seed, 12)]))
    assert np.array_equal(*results)
    close(results[0], reference.ngram(x.astype(np.float64), tokens, doubles(weights), TABLE), 1e-5)


def test_hash_of_the_published_table():
    eos = HASHES["eos"]
    spec = replace(
        TABLE, multipliers=tuple(HASHES["layer_multipliers"]), head_sizes=tuple(HASHES["head_vocab_sizes"]),
        head_offsets=tuple(HASHES["head_offsets"]), heads_per_ngram=8, row_width=1, reset_token=eos)
    text = np.array([9707, 1879, 0], np.int32)  # the vectors are of this text, token by token
    assert [v["tokens"] for v in HASHES["vectors"]] == [[9707, eos, eos], [1879, 9707, eos], [0, 1879, 9707]]
    rows = np.array([v["rows"] for v in HASHES["vectors"]])
    table = np.zeros((rows.max() + 1, 1), np.float32)  # a gigabyte that is never touched
    table[rows.ravel(), 0] = np.arange(1, rows.size + 1)
    held = replace(tensor("table", np.zeros((1, 1))), shape=table.shape, data=table.view(np.uint8))
    with block(lambda b, x: [ngram_block.gather(b, spec, held)], {"x": 1}) as run:
        run.backend.history[:3] = text
        (found,) = run(x=np.zeros((3, 1)))
    assert found.ravel().tolist() == list(range(1, rows.size + 1))
    assert reference.ngram_rows(text, spec).tolist() == rows.tolist()


@pytest.mark.parametrize("name", ["IQ4_NL", "Q8_0", "F16", "BF16"])
def test_rows_of_a_table_in_other_formats(name):
    table = random_weight(name, 60, 32, seed=3)
    exact = dequantize(table)
    spec = replace(TABLE, row_width=32)
    tokens = np.arange(20, dtype=np.int32) % 7
    with block(lambda b, x: [ngram_block.gather(b, spec, table)], {"x": 1}) as run:
        run.backend.history[:20] = tokens
        (found,) = run(x=np.zeros((20, 1)))
    expected = exact[reference.ngram_rows(tokens, spec)].reshape(20, -1).astype(np.float32)
    assert np.array_equal(found, expected, equal_nan=True)
