"""Conversations with tools: definitions in the system turn, calls, results, answers; and turns that need no call.

Tools come from a catalogue with varying names and wordings, or are made up from verbs and nouns, so that a model must
read the definitions. No torch, no files.
"""
from __future__ import annotations

import json
import random

from tools.tiny.catalogue import CATALOGUE, NOUNS, PARAMETERS, VERBS, Spec
from tools.tiny.sums import plain_sum
from tools.tiny.words import BOYS, CITIES, COLOURS, FOODS, GIRLS, fill

MADE_UP_ASKS = (
    "[Please use|Use|Call|Run] {name} with {pairs}[.|]",
    "[Please call|Call|Use] [the|] {name} [function|tool] with {pairs}.",
    "Can you {verb} the {noun}? {Pairs}.",
    "[Please |]{verb} the {noun} with {pairs}.",
    "I [want|need] to {verb} [a|the] {noun}. {Pairs}.",
)


def value(kind: str, rng: random.Random) -> object:
    """A random argument of some kind."""
    match kind:
        case "city":
            return rng.choice(CITIES)
        case "name":
            return rng.choice(GIRLS + BOYS)
        case "number":
            return rng.randint(1, rng.choice((10, 100, 1000)))
        case "small":
            return rng.randint(1, 30)
        case "percent":
            return rng.randint(0, 100)
        case "time":
            return f"{rng.randint(0, 23):02d}:{rng.choice(('00', '15', '30', '45'))}"
        case "day":
            return rng.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "today", "tomorrow"])
        case "item":
            return rng.choice(("milk", "bread", "tea", "butter", "rice", "soap", *FOODS))
        case "room":
            return rng.choice(("kitchen", "bedroom", "living room", "bathroom", "office", "hall", "garage", "garden"))
        case "language":
            return rng.choice(["French", "German", "Spanish", "Italian", "Dutch", "Polish", "Japanese", "Chinese", "Russian", "Greek", "Latin"])
        case "colour":
            return rng.choice(COLOURS)
        case "flag":
            return rng.random() < 0.5
        case "email":
            return f"{rng.choice(GIRLS + BOYS).lower()}@{rng.choice(('example.com', 'mail.org', 'example.net'))}"
        case "expression":
            return f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 99)}"
        case "code":
            return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 4)))
        case "id":
            return rng.choice("ABCDKXZ") + str(rng.randint(10, 9999))
        case "path":
            return rng.choice(("notes", "report", "todo", "data", "list", "readme", "letter")) + rng.choice((".txt", ".md", ".csv"))
        case "message":
            return fill(rng.choice(("I will be [late|there soon|home at six]", "[Happy birthday|Good luck|Thank you]!",
                                    "[Dinner|Lunch] is ready", "See you [tomorrow|on Monday|later]", "Call me back, please",
                                    "The [train|bus] is late", "I found your {c} [hat|keys|book]")), {"c": rng.choice(COLOURS)}, rng)
        case "task":
            return fill("[call|visit|write to] {n}|".rstrip("|") if rng.random() < 0.3 else
                        "[buy|get] {i}" if rng.random() < 0.5 else
                        "[water the plants|feed the cat|clean the kitchen|pay the rent|go for a run|take out the rubbish]",
                        {"n": rng.choice(GIRLS + BOYS), "i": rng.choice(FOODS)}, rng)
        case "topic":
            return fill("[the history of|facts about|news about|pictures of|the best|how to make|books about] "
                        "[chess|tea|space|trees|robots|bread|trains|whales|music|volcanoes|bicycles|football]", {}, rng)
        case "word":
            return rng.choice(["river", "mountain", "lantern", "whisper", "gentle", "bridge", "curious", "harbour", "feather", "honest", "candle", "thunder"])
        case "song":
            return fill("[Blue|Golden|Silent|Little|Summer|Broken|Happy] [River|Moon|Stars|Rain|Road|Dreams|Morning]", {}, rng)
    raise ValueError(f"unknown kind {kind}")


def schema(kind: str) -> str:
    return {"number": "integer", "small": "integer", "percent": "integer", "flag": "boolean"}.get(kind, "string")


def define(name: str, about: str, params: list[tuple[str, str, str]], rng: random.Random) -> dict:
    """An OpenAI-style definition; params are (name, kind, description)."""
    described = rng.random() < 0.6
    properties = {p: {"type": schema(kind), **({"description": text} if described and text else {})}
                  for p, kind, text in params}
    parameters = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = [p for p, _, _ in params]
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": about, "parameters": parameters}
    if rng.random() < 0.1:
        del function["description"]
    return {"type": "function", "function": function}


def from_catalogue(spec: Spec, rng: random.Random) -> tuple[dict, list[str]]:
    """One definition of a catalogue entry and the parameter names it got."""
    params = [(fill(f"[{names}]", {}, rng), kind, text) for names, kind, text in spec.params]
    return define(fill(f"[{spec.names}]", {}, rng), fill(spec.about, {}, rng), params, rng), [p for p, _, _ in params]


def made_up(rng: random.Random) -> tuple[dict, str, dict, str]:
    """A function nobody has seen before: definition, request, arguments, and what it is for."""
    verb, noun = rng.choice(VERBS), rng.choice(NOUNS)
    name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.capitalize()}", f"{noun}.{verb}"))
    params = rng.sample(PARAMETERS, rng.randint(1, 3))
    arguments = {p: value(kind, rng) for p, kind in params}
    said = [fill(rng.choice(("{p} {v}", "{p} {v}", "{p} = {v}", "{p} set to {v}")),
                 {"p": p, "v": json.dumps(v) if isinstance(v, bool) else str(v)}, rng) for p, v in arguments.items()]
    pairs = ", ".join(said[:-1]) + (" and " if len(said) > 1 else "") + said[-1]
    about = fill("[{V} [a|the] {n}.|{V}s the {n}.|Use this to {v} a {n}.]", {"V": verb.capitalize(), "v": verb, "n": noun}, rng)
    slots = {"name": name, "pairs": pairs, "Pairs": pairs[0].upper() + pairs[1:], "verb": verb, "noun": noun}
    ask = fill(rng.choice(MADE_UP_ASKS), slots, rng)
    if rng.random() < 0.5:
        ask = ask[0].upper() + ask[1:]
    definition = define(name, about, [(p, kind, f"The {p.replace('_', ' ')}.") for p, kind in params], rng)
    return definition, ask, arguments, f"{verb} the {noun}"


def call_dialogue(rng: random.Random) -> tuple[list[dict], list[dict]]:
    """Messages and the tools offered."""
    specs = rng.sample(CATALOGUE, rng.choice((1, 1, 1, 2, 2, 3, 4)))
    defined = [from_catalogue(s, rng) for s in specs]
    tools = [d for d, _ in defined]
    roll = rng.random()
    if roll < 0.12:
        messages = plain_sum(rng) if not any("expression" in str(t) or "calc" in str(t) for t in tools) else small_talk(rng)
    elif roll < 0.35:
        definition, ask, arguments, purpose = made_up(rng)
        tools = [definition, *tools[1:]]
        name = definition["function"]["name"]
        messages = [{"role": "user", "content": ask},
                    {"role": "assistant", "reasoning_content": f"The user wants to {purpose}. I will call {name}.",
                     "content": "", "tool_calls": [{"name": name, "arguments": arguments}]}]
        if rng.random() < 0.4:
            ok = rng.choice(("ok", "done", '{"status": "ok"}', '{"success": true}', "OK"))
            messages += [{"role": "tool", "content": ok},
                         {"role": "assistant", "reasoning_content": "The call was successful.", "content": "Done."}]
    else:
        messages = catalogue_turns(specs[0], defined[0], rng)
        if rng.random() < 0.12 and messages[-1]["role"] == "assistant" and len(specs) > 1:
            messages += catalogue_turns(specs[1], defined[1], rng)
    rng.shuffle(tools)
    return messages, tools


def small_talk(rng: random.Random) -> list[dict]:
    ask, answer = rng.choice((("Hello!", "Hello! How can I help you?"), ("Thank you.", "You are welcome!"),
                              ("Hi", "Hi! What can I do for you?"), ("Good morning!", "Good morning! How can I help you?"),
                              ("What can you do?", "I can use the tools that you gave me.")))
    return [{"role": "user", "content": ask},
            {"role": "assistant", "reasoning_content": "I do not need a tool for this.", "content": answer}]


def catalogue_turns(spec: Spec, defined: tuple[dict, list[str]], rng: random.Random) -> list[dict]:
    """A request that one catalogue tool serves, its call (sometimes two), often its result and the answer."""
    definition, names = defined
    name = definition["function"]["name"]
    times = 2 if spec.twice and rng.random() < 0.12 else 1
    drawn = [[value(kind, rng) for _, kind, _ in spec.params] for _ in range(times)]
    def word(v):
        return {True: "on", False: "off"}[v] if isinstance(v, bool) else str(v)
    slots = [{f"a{i}": word(v) for i, v in enumerate(values)} for values in drawn]
    if times == 2:
        ask = fill(rng.choice(spec.asks[:1]), {"a0": f"{slots[0]['a0']} and {slots[1]['a0']}"}, rng)
        goal = f"{fill(spec.goal, slots[0], rng)} and for {slots[1]['a0']}"
    else:
        ask = fill(rng.choice(spec.asks), slots[0], rng)
        goal = fill(spec.goal, slots[0], rng)
    calls = [{"name": name, "arguments": dict(zip(names, values, strict=True))} for values in drawn]
    think = rng.choice((f"The user wants {goal}. I will call {name}.", f"I need {name} for this.", f"The user wants {goal}."))
    messages = [{"role": "user", "content": ask},
                {"role": "assistant", "reasoning_content": think, "content": "", "tool_calls": calls}]
    if rng.random() < 0.65:
        answers = []
        for s in slots:
            result, answer = spec.outcome(rng, s)
            messages.append({"role": "tool", "content": result})
            answers.append(answer)
        messages.append({"role": "assistant", "content": " ".join(answers),
                         "reasoning_content": rng.choice(("I have the result.", "Now I can answer.", "The tool has answered."))})
    return messages
