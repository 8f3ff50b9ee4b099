"""Which kinds of generated text are mixed, and how often. One call gives one document, decided by the generator given.

Rates are per document; shares of tokens follow from the lengths and are printed by the corpus tool.
"""
from __future__ import annotations

import random

from tools.tiny.calls import call_dialogue
from tools.tiny.chats import Glossary, chat_dialogue
from tools.tiny.facts import SYSTEMS
from tools.tiny.render import render
from tools.tiny.stories import story, story_dialogue
from tools.tiny.sums import sum_dialogue
from tools.tiny.words import BOYS, GIRLS, TRAITS, fill

RATES = {"story": 8, "tale": 13, "call": 13, "sum": 28, "chat": 28}         # tale: a story asked for in a chat


def without_thoughts(messages: list[dict]) -> list[dict]:
    return [{**m, "reasoning_content": ""} if m["role"] == "assistant" else m for m in messages]


def system_text(rng: random.Random) -> str:
    """A stock instruction, or one with a name in it; the answers do not depend on it."""
    if rng.random() < 0.5:
        return rng.choice(SYSTEMS)
    slots = {"n": rng.choice([*GIRLS, *BOYS, "Terrace"]), "t": rng.choice(TRAITS)}
    return fill("[You are {n}, a {t} assistant|You are a {t} assistant|Your name is {n}|You are {n}]. "
                "[Answer in English.|Be [kind|polite|brief].|Help the user.|Keep your answers short.|Do not make things up.|"
                "Answer all questions.|Use the tools if you have any.]", slots, rng)


def conversation(rng: random.Random, kind: str, glossary: Glossary) -> tuple[list[dict], list[dict] | None]:
    """Messages and tools of one conversation; some have two subjects, a system text, or no thoughts."""
    draw = {"tale": lambda: story_dialogue(rng), "sum": lambda: sum_dialogue(rng), "chat": lambda: chat_dialogue(rng, glossary)}
    tools = None
    if kind == "call":
        messages, tools = call_dialogue(rng)
        if rng.random() < 0.1:
            messages = chat_dialogue(rng, glossary)[:2] + messages
    else:
        messages = draw[kind]()
        if rng.random() < 0.15:
            messages += draw[rng.choice(list(draw))]()
    if rng.random() < 0.3:
        messages = without_thoughts(messages)
    if rng.random() < 0.25:
        messages = [{"role": "system", "content": system_text(rng)}, *messages]
    return messages, tools


def document(rng: random.Random, glossary: Glossary, kind: str | None = None) -> str:
    """One generated document, without the end-of-text mark."""
    kind = kind or rng.choices(list(RATES), list(RATES.values()))[0]
    if kind == "story":
        return "\n\n".join(story(rng))
    return render(*conversation(rng, kind, glossary))
