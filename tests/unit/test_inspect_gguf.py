"""What tools/inspect_gguf.py says of files: whole models, parts of models, what does not run and why, damaged ones."""

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.gguf import FORMATS, open_model
from packs.gguf_file import Stored, write_gguf
from packs.manifest import resolve_model
from tools.gguf_facts import Facts, ranges
from tools.inspect_gguf import main, weigh
from tools.make_tiny_gguf import write_model, write_tiny
from tools.random_model import ARCHITECTURES, random_model
from tools.small_vocabulary import vocabulary_metadata


def told(capsys, path: Path, *flags: str) -> dict[str, str]:
    """What the tool prints of a file: the text of each line by its first words; a line without any continues the one before."""
    assert main([str(path), *flags]) == 0
    said, name = {}, ""
    for line in filter(None, capsys.readouterr().out.splitlines()):
        head, text = line[:16].strip(), line[16:].strip()
        said[head or name] = text if head else f"{said.get(name, '')} | {text}"
        name = head or name
    return said


def written(path: Path, arch: str, metadata: dict, names: list[str], shape: tuple[int, ...] = (4, 32)) -> Path:
    """A file of zeros under some names."""
    own = {f"{arch}.{key}" if "." not in key or key.startswith("attention") else key: value for key, value in metadata.items()}
    write_gguf(path, arch, metadata=own, tensors={name: np.zeros(shape, np.float32) for name in names})
    return path


def block(number: int, *names: str) -> list[str]:
    return [f"blk.{number}.{name}.weight" for name in names]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_runs_and_is_described(tmp_path, capsys, arch):
    model = random_model(arch)
    said = told(capsys, write_model(tmp_path / "m.gguf", model)[0])
    assert said["runs"] == "yes, on the CPU"
    assert said["architecture"].startswith(f"{model.architecture} (random {arch}")
    drafts = model.metadata.get(f"{model.architecture}.nextn_predict_layers", 0)
    blocks = model.metadata[f"{model.architecture}.block_count"]
    assert sum(int(n) for n in re.findall(r"(\d+) × (?!draft)", said["layers"])) == blocks - drafts
    if model.sizes.experts:
        assert said["experts"] == f"{model.sizes.experts}, {model.sizes.experts_used} a token, {model.sizes.ff} wide"
    assert "other" not in said["layers"]


def test_kinds_of_layers_by_number(tmp_path, capsys):
    said = told(capsys, write_tiny(tmp_path / "m.gguf", "deepseek2")[0])
    assert said["layers"] == ("1 × compressed attention, dense (0) | "
                              "3 × compressed attention, experts, shared expert (1-3)")
    assert said["width"] == "72; 6 heads of 28; cells of 40 + 12"
    said = told(capsys, resolve_model(Path("packs/tiny")).model)
    assert said["layers"].startswith("6 × delta net, experts, shared expert (0-2, 4-6) | 2 × sparse attention, experts")
    assert "1 × draft blocks, which this version does not use yet (8)" in said["layers"]
    assert said["tokenizer"] == "gpt2, rule qwen35, 4,096 tokens, with a chat template"
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7" and ranges(range(0, 40, 2)).endswith("10, …")


def test_bytes_by_role_and_format_add_up(tmp_path, capsys):
    store = {"*down_exps*": "Q8_0", "*_exps*": "Q4_0"}
    path = write_tiny(tmp_path / "m.gguf", "qwen2moe", preset="blocks", store=store, layout="shards")[0]
    with open_model(path) as files:
        facts = Facts(files)
        groups = {group.role: group for group in facts.by_role()}
        assert sum(group.n_bytes for group in groups.values()) == sum(t.n_bytes for t in files.tensors.values())
        assert sum(group.count for group in groups.values()) == len(files.tensors)
        s = random_model("qwen2moe", preset="blocks").sizes
        one = s.layers * s.experts * s.ff * s.width // 32  # blocks of one of the three matrices
        assert groups["routed experts"].by_format == {"Q4_0": 2 * 18 * one, "Q8_0": 34 * one}
        assert groups["shared experts"].count == 3 * s.layers and groups["router"].count == 2 * s.layers
        total, read = facts.expert_bytes()
        assert total == 70 * one and read == pytest.approx(total * s.experts_used / s.experts)
    said = told(capsys, path)
    assert said["file"].startswith("m-00001-of-00003.gguf and 2 more files")
    assert re.search(r"Q4_0 [\d.,]+, Q8_0 [\d.,]+$", said["routed experts"])


@pytest.mark.parametrize("arch", ["deepseek2", "qwen4exp", "gpt-oss"])
def test_memory_is_what_the_engine_takes(tmp_path, arch):
    from engine.session import load_session

    path = write_tiny(tmp_path / "m.gguf", arch)[0]
    session = load_session(resolve_model(path), EngineConfig(model=path, max_context=2048))
    try:
        taken, state_mib = session._backend.n_bytes, session.info()["state_mib"]
    finally:
        session.close()
    with open_model(path) as files:
        cost = weigh(files, 2048)
        assert (cost.total_bytes, cost.state_bytes >> 20) == (taken, state_mib)
        assert cost.plan.bytes_for(2048) == pytest.approx(taken, rel=0.03)
        assert weigh(files, 1 << 30).total_bytes > 1 << 38


def test_cache_of_compressed_attention_is_one_row_a_cell(tmp_path):
    s = random_model("deepseek2").sizes
    with open_model(write_tiny(tmp_path / "m.gguf", "deepseek2")[0]) as files:
        cost = weigh(files, 1000)
        cell = s.layers * (s.latent + s.rope_dims)
        assert cost.state_bytes == 1000 * (4 * cell + 4)  # and the tokens
        assert (cost.recurrent_bytes, cost.card_state_bytes) == (0, 2 * 1000 * cell)


PARTS = {
    "assistant": ("gemma4-assistant", {"block_count": 2, "nextn_predict_layers": 2, "embedding_length": 32},
                  ["token_embd.weight", "nextn.pre_projection.weight", *block(0, "attn_q", "ffn_down"), *block(1, "attn_q")],
                  "it is a draft head that reads the cache of a gemma4"),
    "shared draft": ("qwen4exp", {"block_count": 49, "nextn_predict_layers": 1},
                     block(48, "nextn.eh_proj", "attn_q", "indexer.q_proj", "ffn_down_exps"),
                     "it is a draft block without its trunk"),
    "own draft": ("qwen4exp", {"block_count": 49, "nextn_predict_layers": 1},
                  ["token_embd.weight", "output.weight", *block(48, "nextn.eh_proj", "attn_q")],
                  "it is a draft block without its trunk"),
    "other draft": ("qwen4exp-mtp", {}, ["mtp.fc_embedding.weight"], "it is a draft block of a qwen4exp in the layout of"),
    "table": ("qwen4exp", {}, ["per_layer_token_embd.weight"], "its model, as --ple-gguf"),
    "vocabulary": ("llama", vocabulary_metadata(), [], "it is a vocabulary without weights"),
    "encoder": ("clip", {}, ["v.patch_embd.weight"], "it is an image or audio encoder"),
    "adapter": ("llama", {"general.type": "adapter"}, ["blk.0.attn_q.weight.lora_a"], "it is an adapter"),
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_models_are_recognised(tmp_path, capsys, case):
    arch, metadata, names, says = PARTS[case]
    said = told(capsys, written(tmp_path / "m.gguf", arch, metadata, names))
    assert said["runs alone"].startswith("no: it is") and says in said["runs alone"]
    assert "runs" not in said
    assert ("draft blocks" in said.get("layers", "")) == (case in ("assistant", "shared draft", "own draft"))


def test_embedded_draft_blocks_are_told_from_the_trunk(tmp_path, capsys):
    names = ["token_embd.weight", *block(0, "attn_qkv", "ssm_alpha", "ffn_down_exps"), *block(1, "attn_q", "ffn_down_exps"),
             *block(2, "attn_q", "nextn.eh_proj", "ffn_down_exps")]
    path = written(tmp_path / "m.gguf", "qwen35moe", {"block_count": 3, "nextn_predict_layers": 1}, names)
    said = told(capsys, path)
    assert said["layers"] == ("1 × delta net, experts (0) | 1 × attention, experts (1) | "
                              "1 × draft blocks, which this version does not use yet (2)")
    assert said["draft blocks"].split()[0] == "3"  # tensors


def test_what_does_not_run_says_by_name_why(tmp_path, capsys):
    said = told(capsys, written(tmp_path / "a.gguf", "starfish", {"block_count": 1}, block(0, "attn_q")))
    assert said["runs"].startswith("no: the architecture 'starfish' is not supported; supported are llama")
    assert said["layers"] == "1 × attention"

    model = random_model("llama-moe", preset="blocks")
    name, form = "blk.1.ffn_up_exps.weight", FORMATS["Q1_0"]
    shape = model.tensors[name].shape
    blocks = np.zeros((*shape[:-1], form.row_bytes(shape[-1])), np.uint8)
    strange = replace(model, tensors=model.tensors | {name: Stored(blocks, shape, form.id)})
    write_gguf(tmp_path / "b.gguf", "llama", metadata=strange.metadata, tensors=strange.tensors)
    assert told(capsys, tmp_path / "b.gguf")["runs"] == f"no: {name}: the format Q1_0 has no kernel on the CPU"

    more = replace(model, tensors=model.tensors | {"blk.0.attn_gate.weight": np.zeros((4, 4), np.float32)})
    assert "blk.0.attn_gate.weight" in told(capsys, write_model(tmp_path / "c.gguf", more)[0])["runs"]
    del model.tensors["blk.2.attn_k.weight"]
    crowded = random_model("llama", tokenizer="bpe")
    crowded.metadata["tokenizer.ggml.tokens"] = [str(i) for i in range(4000)]
    said = told(capsys, write_model(tmp_path / "e.gguf", crowded)[0])
    assert said["runs"] == "no: token_embd.weight: has 320 rows for a vocabulary of 4000 tokens"
    lacking = told(capsys, write_model(tmp_path / "d.gguf", model)[0])
    assert lacking["runs"] == "no: the file lacks the tensor blk.2.attn_k.weight"


def test_context_and_table_flags(tmp_path, capsys):
    path = write_tiny(tmp_path / "m.gguf", "gpt-oss")[0]
    assert told(capsys, path)["context"] == "4,096 tokens"
    said = told(capsys, path, "--context", "100000")
    assert said["context"] == "100,000 tokens (trained for 4,096)" and "state" in said and "fits into" in said["memory"]
    assert "does not fit" in told(capsys, path, "--context", "2000000000")["memory"]
    model, table = write_tiny(tmp_path / "q.gguf", "qwen4exp", layout="ple-file")
    assert told(capsys, model)["runs"] == "no: the file lacks the tensor per_layer_token_embd.weight"
    assert told(capsys, model, "--ple-gguf", str(table))["runs"] == "yes, on the CPU"
    with pytest.raises(SystemExit) as left:
        main([str(path), "--context", "1"])
    assert left.value.code == 2


def test_texts_of_a_file_stay_on_their_line(tmp_path, capsys):
    model = random_model("llama")
    odd = {"general.name": "a\nruns            yes \x1b[31m" + "x" * 500, "tokenizer.ggml.model": "b\tc"}
    path = write_model(tmp_path / "m.gguf", replace(model, metadata=model.metadata | odd))[0]
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert r"llama (a\nruns" in out and r"b\tc" in out and "\x1b" not in out and out.count("runs  ") == 2
    assert max(map(len, out.splitlines())) < 200


def test_damaged_files_are_one_line_and_exit_code_1(tmp_path, capsys):
    whole = write_tiny(tmp_path / "m.gguf", "llama-moe")[0].read_bytes()
    path, rng = tmp_path / "cut.gguf", random.Random(0)
    for size in [0, 3, 4, 23, 24, *range(40, 4000, 97), *(len(whole) * k // 16 for k in range(1, 16)), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert main([str(path)]) == 1, size
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("inspect_gguf: "), size
    with open_model(tmp_path / "m.gguf") as files:
        header = min(tensor.offset for tensor in files.tensors.values())
    for _ in range(60):  # one number of the header is another
        at = rng.randrange(24, header - 8)
        number = rng.choice([0, 1, 3, 255, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])
        path.write_bytes(whole[:at] + number.to_bytes(8, "little") + whole[at + 8:])
        code, printed = main([str(path)]), capsys.readouterr()
        assert code in (0, 1) and printed.err.count("\n") == code and (printed.out == "") == (code == 1)
    for wrong in (tmp_path, tmp_path / "none.gguf"):
        assert main([str(wrong)]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_the_wrong_shard_names_the_first(tmp_path, capsys):
    files = write_tiny(tmp_path / "m.gguf", "llama", layout="shards")
    assert main([str(files[1])]) == 1
    assert "is shard 2 of 3; give the first one, m-00001-of-00003.gguf" in capsys.readouterr().err
