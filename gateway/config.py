"""The gateway's settings: flags, or the same names in a JSON file.

One struct declares every setting; flags, the file's keys, types and help all come from it. Reads that file, no more.
"""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta


class ConfigError(ValueError):
    """A flag or a key of the config file that cannot be used; the text is one clear line."""


_Key = Annotated[str, Meta(min_length=1, pattern=r"^\S+$")]  # a header cannot carry blanks at its ends


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting. A list field is a flag that may be repeated."""

    model: Annotated[Path | None, Meta(description="GGUF file or pack directory (default: packs/tiny)")] = None
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on, 0 = any free one")] = 8080
    name: Annotated[str | None, Meta(description="model name that clients see (default: the model's own)")] = None
    api_key: Annotated[_Key | None, Meta(description="key that clients must send (default: none)")] = None
    allow_host: Annotated[tuple[str, ...], Meta(description="a further Host name to answer to when there is no key")] = ()
    allow_origin: Annotated[
        tuple[str, ...], Meta(description="origin of another web page that may use this server, * = any")
    ] = ()
    engine_arg: Annotated[tuple[str, ...], Meta(description="an argument to hand on to the engine")] = ()
    engine_command: Annotated[
        str | None, Meta(description="another engine program that speaks the line protocol, with its arguments")
    ] = None
    max_queue: Annotated[int, Meta(ge=0, description="requests that may wait for the engine; further ones get 503")] = 64
    client_timeout: Annotated[
        float, Meta(gt=0, description="seconds a client may take to send a request, and to begin the next on its connection")
    ] = 60.0
    log_text: Annotated[
        bool, Meta(description="true: traces in the log may quote requests; false: nothing of them is logged")
    ] = False
    ready_timeout: Annotated[float, Meta(gt=0, description="seconds that loading the model may take")] = 1800.0
    silence_timeout: Annotated[
        float, Meta(gt=0, description="seconds without a word after which a working engine is restarted")
    ] = 300.0
    ping_timeout: Annotated[
        float, Meta(gt=0, description="seconds without any sign of life after which the engine is restarted")
    ] = 30.0

    @property
    def engine_words(self) -> list[str] | None:
        """`engine_command` as words, None for our own engine."""
        return None if self.engine_command is None else shlex.split(self.engine_command)


_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_FIELDS = {field.name: field for field in msgspec.structs.fields(GatewayConfig)}
_FLAGS = {"--" + name.replace("_", "-"): name for name in _FIELDS}


def parse_arguments(arguments: Sequence[str]) -> GatewayConfig:
    """Settings from the command line and the file it names; what the command line says wins."""
    given, file = _split(arguments)
    values = {} if file is None else _read_file(file)
    values.update(given)
    try:
        return msgspec.convert(values, GatewayConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        name = path[:-1].partition("[")[0]
        raise ConfigError(f"{'--' + name.replace('_', '-') + ': ' if name else ''}{text}") from error


def usage() -> str:
    """The help text."""
    lines = ["usage: python -m gateway [--config FILE.json] [FLAG VALUE …]", ""]
    for flag, name in _FLAGS.items():
        field = _FIELDS[name]
        default = f" (default: {field.default})" if isinstance(field.default, str | int | float) else ""
        repeat = ", repeatable" if _is_list(name) else ""
        lines.append(f"  {flag:<18} {_description(name)}{repeat}{default}")
    lines.append(f"  {'--config':<18} JSON file with these settings; the keys are the flags' names with _ for -")
    return "\n".join(lines)


def _split(arguments: Sequence[str]) -> tuple[dict[str, Any], Path | None]:
    """The command line as settings, and the config file that it names."""
    values: dict[str, Any] = {}
    file: Path | None = None
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag != "--config" and flag not in _FLAGS:
            near = difflib.get_close_matches(flag, [*_FLAGS, "--config"], n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; --help lists the flags"
            raise ConfigError(f"unknown {'flag' if flag.startswith('-') else 'argument'} {flag}{hint}")
        if not equals:
            if not rest:
                raise ConfigError(f"{flag} needs a value")
            value = rest.pop(0)
        if flag == "--config":
            file = Path(value)
            continue
        name = _FLAGS[flag]
        if _is_list(name):
            values[name] = [*values.get(name, ()), value]
        elif name in values:
            raise ConfigError(f"{flag} is given twice")
        else:
            values[name] = _typed(flag, name, value)
    return values, file


def _typed(flag: str, name: str, value: str) -> Any:
    """A flag's value in the type that the file would hold it in."""
    kind = type(_FIELDS[name].default)
    if kind is bool:
        if value not in _TRUTHS:
            raise ConfigError(f"{flag}: expected true or false, got {value!r}")
        return _TRUTHS[value]
    if kind not in (int, float):
        return value
    try:
        number: int | float = int(value) if kind is int else float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{flag}: expected {'a whole number' if kind is int else 'a number'}, got {value!r}")
    return number


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))  # some editors write a mark
    except OSError as error:
        raise ConfigError(f"--config: {file}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {file} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--config: {file} must hold a JSON object")
    for name in values:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"--config: {file}: unknown key {name}{hint}")
    if isinstance(values.get("model"), str):
        values["model"] = str(file.parent / values["model"])  # an absolute path stays as it is
    return values


def _is_list(name: str) -> bool:
    return isinstance(_FIELDS[name].default, tuple)


def _description(name: str) -> str:
    hint = get_type_hints(GatewayConfig, include_extras=True)[name]
    return next((meta.description or "" for meta in get_args(hint) if isinstance(meta, Meta)), "")
