"""The line protocol between engine and client: one parser and one formatter a direction.

Pure: lines in, structs out and back, without input or output, so any thread may call it; `protocol.md` is the
contract it implements. It must not know who is on either side. A line is passed without its newline, as `bytes` (what
a pipe gives) or `str`; the `format_*` functions return `str` without the newline.
"""

import re
from collections.abc import Callable
from typing import Any

from engine.messages import (
    MAX_INT,
    MAX_LINE_BYTES,
    MAX_PENALTY,
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MAX_WORD_CHARS,
    MIN_REPEAT_PENALTY,
    PROTOCOL_VERSION,
    BadCommand,
    BadEvent,
    Command,
    Done,
    Err,
    Event,
    Finish,
    Gen,
    Info,
    Line,
    Ping,
    Pong,
    Progress,
    Quit,
    Ready,
    Resume,
    Sampling,
    Stats,
    StatsRequest,
    Stop,
    TokenLine,
    Unknown,
)

__all__ = [
    "MAX_INT",
    "MAX_LINE_BYTES",
    "MAX_PENALTY",
    "MAX_SEED",
    "MAX_TEMPERATURE",
    "MAX_TOP_K",
    "MAX_TOP_LOGPROBS",
    "MAX_WORD_CHARS",
    "MIN_REPEAT_PENALTY",
    "PROTOCOL_VERSION",
    "BadCommand",
    "BadEvent",
    "Command",
    "Done",
    "Err",
    "Event",
    "Finish",
    "Gen",
    "Info",
    "Line",
    "Ping",
    "Pong",
    "Progress",
    "Quit",
    "Ready",
    "Resume",
    "Sampling",
    "Stats",
    "StatsRequest",
    "Stop",
    "TokenLine",
    "Unknown",
    "find_request_id",
    "format_command",
    "format_event",
    "parse_command",
    "parse_event",
]

# ---- words and values -----------------------------------------------------------------------------------------------

_UNSIGNED = re.compile(rb"[0-9]{1,20}")
_SIGNED = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_ID_LIST = re.compile(rb"[0-9]{1,10}(?:(?:[ \t]*,[ \t]*|[ \t]+)[0-9]{1,10})*+")  # possessive: linear on bad input too
_GOOD_IDS = re.compile(rb"(?:[0-9]{1,10}(?:[ \t]*,[ \t]*|[ \t]+))*+")
_KEY = re.compile(rb"[a-z][a-z0-9_]*=")


def _as_bytes(line: Line) -> bytes:
    raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _cut(raw: bytes) -> tuple[bytes, bytes]:
    """The first word and the rest, blanks around both taken away."""
    head, *rest = raw.split(None, 1) or [b""]
    return head, rest[0].rstrip() if rest else b""


def _shown(raw: bytes) -> str:
    """A piece of a line for a message: short, printable, quoted."""
    text = ascii(raw[:40].decode("utf-8", "replace"))
    return text + "…" if len(raw) > 40 else text


def _word(raw: bytes) -> str:
    text = raw.decode("utf-8")
    if not 1 <= len(text) <= MAX_WORD_CHARS or not text.isprintable() or " " in text or "=" in text:
        raise ValueError
    return text


def _unsigned(raw: bytes, limit: int = MAX_INT) -> int:
    if _UNSIGNED.fullmatch(raw) is None or (value := int(raw)) > limit:
        raise ValueError
    return value


def _number(raw: bytes, low: float, high: float) -> float:
    if _DECIMAL.fullmatch(raw) is None or not low <= (value := float(raw)) <= high:
        raise ValueError
    return value


def _bit(raw: bytes) -> bool:
    if raw not in (b"0", b"1"):
        raise ValueError
    return raw == b"1"


# key of a GEN line -> (what is expected, parser that raises ValueError); the first group goes into `Sampling`
_SAMPLING_KEYS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "temperature": (f"a number from 0 to {MAX_TEMPERATURE:g}", lambda raw: _number(raw, 0.0, MAX_TEMPERATURE)),
    "top_k": (f"an integer from 0 (all) to {MAX_TOP_K}", lambda raw: _unsigned(raw, MAX_TOP_K)),
    "top_p": ("a number from 0 to 1", lambda raw: _number(raw, 0.0, 1.0)),
    "min_p": ("a number from 0 to 1", lambda raw: _number(raw, 0.0, 1.0)),
    "penalty_last_n": (f"an integer from 0 to {MAX_INT}", _unsigned),
    "penalty_repeat": (f"a number from {MIN_REPEAT_PENALTY:g} to {MAX_PENALTY:g}",
                       lambda raw: _number(raw, MIN_REPEAT_PENALTY, MAX_PENALTY)),
    "penalty_freq": (f"a number from -{MAX_PENALTY:g} to {MAX_PENALTY:g}",
                     lambda raw: _number(raw, -MAX_PENALTY, MAX_PENALTY)),
    "penalty_present": (f"a number from -{MAX_PENALTY:g} to {MAX_PENALTY:g}",
                        lambda raw: _number(raw, -MAX_PENALTY, MAX_PENALTY)),
    "seed": (f"an integer from 0 to {MAX_SEED}", lambda raw: _unsigned(raw, MAX_SEED)),
    "spec_min_p": ("a number from 0 to 1", lambda raw: _number(raw, 0.0, 1.0)),
}  # fmt: skip
_GEN_KEYS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "id": (f"1 to {MAX_WORD_CHARS} printable characters without blanks or '='", _word),
    "logprobs": (f"an integer from 0 to {MAX_TOP_LOGPROBS}", lambda raw: _unsigned(raw, MAX_TOP_LOGPROBS)),
    "score": ("token ids joined by ':'", lambda raw: tuple(_unsigned(word) for word in raw.split(b":"))),
    "cache": ("0 or 1", _bit),
    "ignore_eos": ("0 or 1", _bit),
}


# ---- commands -------------------------------------------------------------------------------------------------------


def parse_command(line: Line) -> Command:
    """What a client's line asks for; raises BadCommand, whose text says what was expected."""
    raw = _as_bytes(line)
    if len(raw) > MAX_LINE_BYTES:
        message = f"a line has at most {MAX_LINE_BYTES} bytes, this one has {len(raw)}"
        raise BadCommand(message, request_id=find_request_id(raw[:4096]))
    verb, rest = _cut(raw)
    match verb:
        case b"GEN":
            return _parse_gen(rest)
        case b"STOP":
            return _parse_stop(rest)
        case b"PING":
            return Ping(_parse_word("PING", rest)) if rest else Ping()
        case b"STATS" if not rest:
            return StatsRequest()
        case b"QUIT" if not rest:
            return Quit()
        case b"STATS" | b"QUIT":
            raise BadCommand(f"expected {verb.decode()} alone on its line, got {_shown(rest)} after it")
    raise BadCommand(f"expected GEN, STOP, PING, STATS or QUIT, got {_shown(raw)}")


def find_request_id(raw: bytes) -> str | None:
    """The `id=` of a GEN line that may be cut or malformed, so that its ERR can name the request."""
    if not raw.lstrip().startswith(b"GEN"):
        return None
    for word in raw[:4096].split():
        if word.startswith(b"id="):
            try:
                return _word(word[3:])
            except ValueError:
                return None
    return None


def _parse_word(verb: str, raw: bytes) -> str:
    try:
        return _word(raw)
    except ValueError:
        expected = _GEN_KEYS["id"][0]
        raise BadCommand(f"expected {verb} with one word of {expected}, got {_shown(raw)}") from None


def _parse_gen(rest: bytes) -> Gen:
    request_id = find_request_id(b"GEN " + rest[:4096])
    head, rest = _cut(rest)
    try:
        max_new = _unsigned(head)
    except ValueError:
        expected = f"expected GEN <max_new> [key=value …] <id,id,…> with max_new from 0 to {MAX_INT}"
        raise BadCommand(f"{expected}, got {_shown(head)} for max_new", request_id=request_id) from None
    sampling: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    while (match := _KEY.match(rest)) is not None:
        word, rest = _cut(rest)
        key, value = word[: match.end() - 1].decode(), word[match.end() :]
        known, target = (_SAMPLING_KEYS, sampling) if key in _SAMPLING_KEYS else (_GEN_KEYS, fields)
        if key not in known:
            continue
        expected, parse = known[key]
        if key in target:
            raise BadCommand(f"{key} is given twice", request_id=request_id)
        try:
            target[key] = parse(value)
        except ValueError:
            raise BadCommand(f"expected {key} as {expected}, got {_shown(value)}", request_id=request_id) from None
    try:
        tokens = _parse_ids(rest)
    except BadCommand as error:
        error.request_id = request_id
        raise
    return Gen(max_new=max_new, tokens=tokens, sampling=Sampling(**sampling), **fields)


def _parse_ids(raw: bytes) -> tuple[int, ...]:
    expected = f"expected token ids as decimal integers from 0 to {MAX_INT} joined by commas"
    if not raw:
        raise BadCommand(f"{expected}, got none")
    if _ID_LIST.fullmatch(raw) is None:
        good = _GOOD_IDS.match(raw)
        at = good.end() if good is not None else 0
        raise BadCommand(f"{expected}, got {_shown(raw[at:])} at byte {at} of the list")
    separated = raw.split(b",") if b" " not in raw and b"\t" not in raw else raw.replace(b",", b" ").split()
    tokens = tuple(map(int, separated))
    if (largest := max(tokens)) > MAX_INT:
        raise BadCommand(f"{expected}, got {largest}")
    return tokens


def _parse_stop(rest: bytes) -> Stop:
    request_id: str | None = None
    keep: int | None = None
    for place, word in enumerate(rest.split()):
        key, equals, value = word.partition(b"=")
        if not equals and place == 0:
            request_id = _parse_word("STOP", word)
        elif not equals:
            raise BadCommand(f"expected STOP [id] [keep=n], got {_shown(word)}")
        elif key == b"keep":
            try:
                keep = _unsigned(value)
            except ValueError:
                raise BadCommand(f"expected keep as an integer from 0 to {MAX_INT}, got {_shown(value)}") from None
    return Stop(id=request_id, keep=keep)


def format_command(command: Command) -> str:
    """The line that `parse_command` reads back as an equal command; keys at their defaults are left out."""
    match command:
        case Gen():
            return _format_gen(command)
        case Stop():
            words = ["STOP"] if command.id is None else ["STOP", command.id]
            return " ".join(words if command.keep is None else [*words, f"keep={command.keep}"])
        case Ping():
            return "PING" if command.word is None else f"PING {command.word}"
        case StatsRequest():
            return "STATS"
        case Quit():
            return "QUIT"


def _format_gen(gen: Gen) -> str:
    words = ["GEN", str(gen.max_new)]
    if gen.id is not None:
        words.append(f"id={gen.id}")
    words += [
        f"{key}={getattr(gen.sampling, key)!r}"
        for key in _SAMPLING_KEYS
        if getattr(gen.sampling, key) != getattr(_GREEDY, key)
    ]
    if gen.logprobs is not None:
        words.append(f"logprobs={gen.logprobs}")
    if gen.score is not None:
        words.append("score=" + ":".join(map(str, gen.score)))
    if not gen.cache:
        words.append("cache=0")
    if gen.ignore_eos:
        words.append("ignore_eos=1")
    words.append(",".join(map(str, gen.tokens)))
    return " ".join(words)


_GREEDY = Sampling()


# ---- events ---------------------------------------------------------------------------------------------------------


def parse_event(line: Line) -> Event:
    """What an engine's line says. Raises BadEvent for a known verb with damaged fields."""
    raw = _as_bytes(line)
    try:
        words = [word.decode("utf-8") for word in raw.split()]
        parser = _EVENT_PARSERS.get(words[0]) if words else None
        return Unknown(raw.decode("utf-8")) if parser is None else parser(words[1:])
    except (ValueError, IndexError) as error:
        raise BadEvent(f"not a protocol line: {_shown(raw)} ({error})") from None


def _fields(words: list[str]) -> dict[str, int | str]:
    pairs = (word.partition("=") for word in words)
    return {key: int(value) if _SIGNED.fullmatch(value) else value for key, _, value in pairs}


def _parse_ready(words: list[str]) -> Ready:
    return Ready(int(words[0]), tuple(words[1:]))


def _parse_progress(words: list[str]) -> Progress:
    return Progress(int(words[0]), int(words[1]), round(float(words[2])), float(words[3]))


def _parse_token(words: list[str]) -> TokenLine:
    logprob = float(words[1]) if len(words) > 1 else None
    pairs = (pair.split(":") for pair in words[2].split(",")) if len(words) > 2 else ()
    return TokenLine(int(words[0]), logprob, tuple((int(token), float(value)) for token, value in pairs))


_DONE_COUNTERS = (
    "accepted", "offered", "reused", "hits", "lookups", "ram_blobs", "file_blobs", "file_mb", "prompt_read",
)  # fmt: skip


def _finish(word: str) -> Finish:
    match word:
        case "stop" | "length" | "cancel":
            return word
    raise ValueError(f"unknown finish {word!r}")


def _parse_done(words: list[str]) -> Done:
    plain = [word for word in words if "=" not in word]
    extra = dict(word.split("=", 1) for word in words if "=" in word)
    return Done(
        generated=int(plain[0]),
        prompt=int(plain[1]),
        prompt_ms=float(plain[2]),
        decode_ms=float(plain[3]),
        finish=_finish(plain[4]),
        id=extra.pop("id", None),
        extra=extra,
        # engines of other versions end the list earlier, and may print a counter with decimals
        **{name: int(float(word)) for name, word in zip(_DONE_COUNTERS, plain[5:], strict=False)},
    )


def _parse_err(words: list[str]) -> Err:
    pairs: dict[str, str] = {}
    rest = words[1:]
    while rest and _KEY.match(rest[0].encode()):
        key, _, value = rest.pop(0).partition("=")
        pairs[key] = value
    return Err(code=words[0], message=" ".join(rest), id=pairs.get("id"), fatal=pairs.get("fatal") == "1")


_EVENT_PARSERS: dict[str, Callable[[list[str]], Event]] = {
    "INFO": lambda words: Info(_fields(words)),
    "READY": _parse_ready,
    "RESUME": lambda words: Resume(int(words[0])),
    "PP": _parse_progress,
    "T": _parse_token,
    "DONE": _parse_done,
    "ERR": _parse_err,
    "PONG": lambda words: Pong(words[0] if words else None),
    "STATS": lambda words: Stats(_fields(words)),
}


def format_event(event: Event) -> str:
    """The line of an event; `parse_event` reads it back as an equal one."""
    match event:
        case TokenLine():
            return _format_token(event)
        case Progress():
            return f"PP {event.done} {event.total} {event.ms} {event.tokens_per_s:.1f}"
        case Resume():
            return f"RESUME {event.reused}"
        case Done():
            return _format_done(event)
        case Err():
            return _format_err(event)
        case Pong():
            return "PONG" if event.word is None else f"PONG {event.word}"
        case Info():
            return _format_fields("INFO", event.fields)
        case Stats():
            return _format_fields("STATS", event.fields)
        case Ready():
            return " ".join(["READY", str(event.max_context), *event.features])
        case Unknown():
            return event.line


def _format_fields(verb: str, fields: dict[str, int | str]) -> str:
    # a value is one word: blanks inside it become underscores
    return " ".join([verb, *(f"{key}={'_'.join(str(value).split())}" for key, value in fields.items())])


def _format_token(event: TokenLine) -> str:
    if event.logprob is None:
        return f"T {event.token}"
    line = f"T {event.token} {event.logprob:.6g}"
    return line + " " + ",".join(f"{token}:{value:.6g}" for token, value in event.top) if event.top else line


def _format_done(event: Done) -> str:
    words = [
        f"DONE {event.generated} {event.prompt} {event.prompt_ms:.1f} {event.decode_ms:.1f} {event.finish}",
        *(str(getattr(event, name)) for name in _DONE_COUNTERS),
    ]
    if event.id is not None:
        words.append(f"id={event.id}")
    words += [f"{key}={value}" for key, value in event.extra.items()]
    return " ".join(words)


def _format_err(event: Err) -> str:
    words = ["ERR", event.code]
    if event.id is not None:
        words.append(f"id={event.id}")
    if event.fatal:
        words.append("fatal=1")
    message = " ".join(event.message.split())
    if _KEY.match(message.encode("utf-8", "replace")):
        message = "at " + message  # a message that began like a pair would be read as one
    words.append(message)
    return " ".join(words)
