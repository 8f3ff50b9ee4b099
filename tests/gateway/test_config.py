"""Flags and the config file; what the command says when they are wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import ConfigError, GatewayConfig, parse_arguments, usage
from tests.gateway.harness import REPOSITORY
from tests.gateway.model_file import vocabulary, write_model_file


def test_flags() -> None:
    config = parse_arguments(
        ["--port", "1", "--engine-arg", "--max-context", "--engine-arg=4096", "--model=m.gguf", "--ready-timeout", "2"]
    )
    assert config == GatewayConfig(port=1, engine_arg=("--max-context", "4096"), model=Path("m.gguf"), ready_timeout=2.0)


def test_the_file_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"port": 5, "host": "::1", "model": "models/a.gguf", "engine_arg": ["--prefill", "64"]}))
    config = parse_arguments(["--config", str(file), "--port", "6"])
    assert config == GatewayConfig(port=6, host="::1", model=tmp_path / "models/a.gguf", engine_arg=("--prefill", "64"))
    file.write_text("\ufeff" + json.dumps({"model": "/abs/a.gguf"}))
    assert parse_arguments([f"--config={file}"]).model == Path("/abs/a.gguf")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prot", "1"], ["--prot", "--port"]),
        (["--portt=1"], ["--portt", "--port"]),
        (["--zzzzz"], ["--zzzzz", "--help"]),
        (["model.gguf"], ["model.gguf"]),
        (["--port"], ["--port", "value"]),
        (["--port", "http"], ["--port", "whole number", "http"]),
        (["--port", "70000"], ["--port", "65535"]),
        (["--port", "1", "--port", "2"], ["--port", "twice"]),
        (["--ready-timeout", "nan"], ["--ready-timeout"]),
        (["--ready-timeout", "0"], ["--ready-timeout"]),
        (["--api-key", ""], ["--api-key"]),
        (["--config", "/no/such/file"], ["/no/such/file"]),
    ],
)
def test_wrong_flags_are_named(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments(flags)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prot": 1}', ["prot", "port"]),
        ('{"port": "8080"}', ["--port", "int"]),
        ('{"engine_arg": "x"}', ["--engine-arg"]),
        ("[1]", ["object"]),
        ("{", ["JSON"]),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_arguments(["--config", str(file)])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_help_names_every_flag() -> None:
    assert all("--" + name.replace("_", "-") in usage() for name in GatewayConfig.__struct_fields__)


def run(*flags: str, home: Path) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-m", "gateway", *flags],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"TERRACE_HOME": str(home), "PATH": "/usr/bin:/bin"},
        timeout=30,
    )
    return result.returncode, result.stderr


def test_exit_codes_and_one_line(tmp_path: Path) -> None:
    code, text = run("--modle", "x", home=tmp_path)
    assert code == 2
    assert "--model" in text
    code, text = run("--model", str(tmp_path / "none.gguf"), home=tmp_path)
    assert code == 1
    assert "none.gguf" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"tokenizer.ggml.model": "no_vocab"}, "no tokenizer"),
        ({}, "no tokenizer"),
        ({**vocabulary(), "tokenizer.ggml.pre": "martian"}, "martian"),
    ],
)
def test_models_without_a_usable_tokenizer_are_refused(tmp_path: Path, metadata: dict, word: str) -> None:
    file = write_model_file(tmp_path / "m.gguf", metadata)
    code, text = run("--model", str(file), home=tmp_path)
    assert code == 1
    assert word in text
    assert len(text.splitlines()) == 1


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    import socket

    file = write_model_file(tmp_path / "m.gguf", vocabulary())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = run("--model", str(file), "--port", str(port), home=tmp_path)
    assert code == 1
    assert f"127.0.0.1:{port}" in text
    assert len(text.splitlines()) == 1


def test_the_gateway_imports_without_the_computing_libraries() -> None:
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['numba', 'cupy', 'llvmlite']))\n"
        "import gateway.__main__, gateway.app, gateway.model\n"
        "assert 'numpy' not in sys.modules, 'numpy'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY, timeout=30)
