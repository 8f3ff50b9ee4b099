"""An engine that plays what a test wrote down: real protocol lines, and every fault a real engine could have.

    python fake_engine.py DIRECTORY [the engine's flags, ignored]

DIRECTORY/script.json holds {"start": [...], "request": [...], "context": 4096}, read anew for every request; every line
received is appended to DIRECTORY/received. A script is a list of actions:

    ["line", "T 5"]         a line; $ID is the request's id, $N its prompt length
    ["text", "hello", 0.01] the bytes of a text as T lines (token ids 0..255 are bytes), with a pause after each
    ["token", 317]          one T line
    ["sleep", 1.5]          nothing for a while; a STOP ends the pause
    ["done", "stop"]        the DONE line
    ["raw", "T 1"]          bytes without a line end
    ["oversized", 17000000] a line of so many bytes
    ["stderr", 1000000]     so many bytes of log
    ["crash", 3]            leave at once with this exit code
    ["hang"]                never answer again, STOP or not
    ["deaf", 5]             sleep without noticing a STOP

After a STOP the rest of the script is dropped and `DONE … cancel` is said. Without a script a request gets "ok".
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from engine.protocol import (
    Done,
    Err,
    Gen,
    Info,
    Ping,
    Pong,
    Progress,
    Quit,
    Ready,
    Stop,
    TokenLine,
    format_event,
    parse_command,
)

DEFAULT_REQUEST = [["text", "ok", 0], ["done", "stop"]]


class FakeEngine:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: SimpleQueue[Gen | None] = SimpleQueue()
        self.stop_asked = threading.Event()
        self.generated = 0
        self.gen: Gen | None = None
        self.lock = threading.Lock()

    def script(self) -> dict:
        try:
            return json.loads((self.directory / "script.json").read_text())
        except FileNotFoundError:
            return {}

    def say(self, line: str, *, end: str = "\n") -> None:
        with self.lock:
            sys.stdout.write(line + end)
            sys.stdout.flush()

    def run(self) -> None:
        threading.Thread(target=self.read, daemon=True).start()
        self.play(self.script().get("start", []))
        context = self.script().get("context", 4096)
        self.say(format_event(Info({"context": context, "eos": "317,319", "prefill": 512, "engine": "fake"})))
        self.say(format_event(Ready(context, ("stop",))))
        while (gen := self.requests.get()) is not None:
            self.answer(gen)

    def read(self) -> None:
        for line in sys.stdin:
            command = parse_command(line)
            if not isinstance(command, Ping):
                with (self.directory / "received").open("a") as file:
                    file.write(f"{os.getpid()} {line}")
            match command:
                case Gen():
                    self.requests.put(command)
                case Stop():
                    if self.gen is not None and command.id in (None, self.gen.id):
                        self.stop_asked.set()
                case Ping():
                    self.say(format_event(Pong(command.word)))
                case Quit():
                    break
        self.requests.put(None)

    def answer(self, gen: Gen) -> None:
        self.gen, self.generated = gen, 0
        self.stop_asked.clear()
        self.play(self.script().get("request", DEFAULT_REQUEST))
        self.gen = None

    def play(self, actions: list) -> None:
        for action in actions:
            if self.gen is not None and self.stop_asked.is_set():
                self.done("cancel")
                return
            self.act(*action)

    def act(self, verb: str, *values: object) -> None:
        match verb, *values:
            case "line", str(text):
                identity = self.gen.id if self.gen is not None and self.gen.id is not None else ""
                count = len(self.gen.tokens) if self.gen is not None else 0
                self.say(text.replace("$ID", identity).replace("$N", str(count)))
            case "text", str(text), pause:
                for byte in text.encode():
                    if self.gen is not None and self.generated >= self.gen.max_new:
                        return
                    if self.stop_asked.is_set():
                        return
                    self.token(byte)
                    if pause:
                        self.stop_asked.wait(pause)
            case "token", int(token):
                self.token(token)
            case "progress", int(done), int(total):
                self.say(format_event(Progress(done, total, 10 * done, 100.0)))
            case "sleep", seconds:
                self.stop_asked.wait(seconds)
            case "deaf", seconds:
                time.sleep(seconds)
            case "done", str(finish):
                limit = self.gen is not None and self.generated >= self.gen.max_new
                self.done("length" if limit else finish)
            case "error", str(code), str(message):
                self.say(format_event(Err(code=code, message=message, id=self.gen.id if self.gen else None)))
            case "raw", str(text):
                self.say(text, end="")
            case "oversized", int(size):
                self.say("X" * size)
            case "stderr", int(size):
                sys.stderr.write(("log " * 25 + "\n") * (size // 101))
                sys.stderr.flush()
            case "crash", int(code):
                os._exit(code)
            case "hang", *_:
                time.sleep(3600)
            case _:
                raise ValueError(f"unknown action {verb} {values}")

    def token(self, token: int) -> None:
        self.generated += 1
        wanted = self.gen is not None and self.gen.logprobs is not None
        top = ((token, -0.5), (ord("x"), -1.5))[: self.gen.logprobs] if wanted else ()
        self.say(format_event(TokenLine(token, -0.5 if wanted else None, top)))

    def done(self, finish: str) -> None:
        prompt = len(self.gen.tokens)
        self.say(
            format_event(
                Done(
                    generated=self.generated,
                    prompt=prompt,
                    prompt_ms=12.5,
                    decode_ms=0.0,
                    finish=finish,
                    prompt_read=prompt,
                    id=self.gen.id,
                )
            )
        )


if __name__ == "__main__":
    FakeEngine(Path(sys.argv[1])).run()
