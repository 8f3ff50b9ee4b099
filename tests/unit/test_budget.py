"""Memory plans: what would fit, the limits of control groups, and an engine that refuses before it takes anything."""

from types import SimpleNamespace

import pytest

from engine.config import EngineConfig
from engine.errors import BadModel, OutOfMemory
from engine.tiers.budget import Plan, cgroup_bytes, does_not_fit
from tools.make_tiny_gguf import write_tiny

GIB = 1 << 30


def test_a_plan_is_the_line_through_two_measures():
    plan = Plan.through((512, 1000 + 512 * 7), (1024, 1000 + 1024 * 7))
    assert plan == Plan(1000, 7)
    assert plan.bytes_for(10) == 1070
    assert (plan.most_cells(1069), plan.most_cells(1070), plan.most_cells(5)) == (9, 10, 0)


def test_the_error_says_needed_available_and_what_would_fit():
    plan = Plan(GIB, 1 << 20)
    error = does_not_fit(needed_bytes=101 * GIB, usable=5 * GIB, context=102400, chunk=512, plan=plan, plan_chunk=512)
    assert str(error).endswith("needs 101.00 GiB beside the weights, 5.00 GiB are available; --max-context 4096 would fit")
    smaller = does_not_fit(needed_bytes=9 * GIB, usable=5 * GIB, context=1024, chunk=1024, plan=plan, plan_chunk=512)
    assert "--max-context 1024 --prefill 512 would fit" in str(smaller)
    none = does_not_fit(needed_bytes=9 * GIB, usable=GIB, context=1024, chunk=512, plan=plan, plan_chunk=512)
    assert str(none).endswith("no context would fit")


def _group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_tightest_control_group_counts(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    assert cgroup_bytes(mounted=tmp_path, own=own) == 1 << 62
    _group(tmp_path / "a" / "b", memory__max="max", memory__current="5", memory__stat="inactive_file 0\n")
    assert cgroup_bytes(mounted=tmp_path, own=own) == 1 << 62
    _group(tmp_path / "a", memory__max="1000", memory__current="700", memory__stat="anon 1\ninactive_file 50\n")
    assert cgroup_bytes(mounted=tmp_path, own=own) == 350
    own.write_text("4:cpu,memory:/c\n9:cpuset:/d\n")
    _group(tmp_path / "memory" / "c", memory__limit_in_bytes="90", memory__usage_in_bytes="100", memory__stat="")
    assert cgroup_bytes(mounted=tmp_path, own=own) == 0
    assert cgroup_bytes(mounted=tmp_path, own=tmp_path / "none") == 1 << 62


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("budget") / "m.gguf", "llama-moe")[0]


def _load(model, **flags):
    from engine.session import load_session
    return load_session(SimpleNamespace(model=model, ple=None, stop_tokens=()), EngineConfig(pool_workers=1, **flags))


def test_a_context_that_cannot_fit_is_refused_with_one_that_does(model, monkeypatch):
    monkeypatch.setattr("engine.session.usable_bytes", lambda: 1 << 27)
    with pytest.raises(OutOfMemory) as refused:
        _load(model, max_context=2**31 - 1)
    advice = int(str(refused.value).split("--max-context ")[1].split()[0])
    session = _load(model, max_context=advice)
    assert session.max_context == advice
    session.close()


def test_stop_ids_of_the_command_line_are_inside_the_vocabulary(model):
    with pytest.raises(BadModel, match="--eos-ids: 167 is outside the vocabulary of 167"):
        _load(model, eos_ids=(3, 167))
    session = _load(model, eos_ids=(7, 3, 7))
    assert session.stop_ids == (3, 7)
    session.close()
