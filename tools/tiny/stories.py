"""Short stories in simple English: a hero, a plot of a few beats, many wordings for each beat.

Also the chat turns that ask for one. Everything is decided by the random generator given.
"""
from __future__ import annotations

import random

from tools.tiny.plots import ENDINGS, MORALS, OPENINGS, PLOTS
from tools.tiny.words import (
    ANIMALS,
    BOYS,
    COLOURS,
    FOODS,
    GIRLS,
    HOMES,
    MOODS,
    NATURE_HOMES,
    PLACES,
    SIZES,
    TOYS,
    TRAITS,
    WEATHERS,
    capital,
    fill,
    plural,
)

HE = {"he": "he", "him": "him", "his": "his", "himself": "himself"}
SHE = {"he": "she", "him": "her", "his": "her", "himself": "herself"}


def person(rng: random.Random, prefix: str, taken: set[str]) -> dict[str, str]:
    """Slots of one character: a child, or an animal with or without a name."""
    girl = rng.random() < 0.5
    pronouns = SHE if girl else HE
    animal = rng.random() < 0.4
    name = rng.choice([n for n in (GIRLS if girl else BOYS) if n not in taken])
    taken.add(name)
    kind = rng.choice([a for a in ANIMALS if a not in taken]) if animal else ("girl" if girl else "boy")
    if animal:
        taken.add(kind)
    who = name if not animal or rng.random() < 0.6 else f"the {kind}"
    slots = {"": who, "kind": kind, "home": rng.choice(NATURE_HOMES if animal else HOMES), **pronouns}
    out = {prefix + (k and f"_{k}"): v for k, v in slots.items()}
    out |= {prefix + "_He": capital(pronouns["he"]), prefix + "_His": capital(pronouns["his"]),
            prefix.capitalize(): capital(who)}
    out[prefix + "_intro"] = (f"a {rng.choice(TRAITS)} {kind} named {name}" if who == name
                              else f"a {rng.choice([*TRAITS, *SIZES[:5]])} {kind}")
    return out


def slots_for(rng: random.Random) -> dict[str, str]:
    taken: set[str] = set()
    slots = person(rng, "hero", taken) | person(rng, "pal", taken)
    place, other = rng.sample(PLACES, 2)
    toy, gift = rng.sample(TOYS, 2)
    food = rng.choice(FOODS)
    slots |= {"place": place, "place2": other, "toy": toy, "gift": gift, "food": food, "foods": plural(food),
              "colour": rng.choice(COLOURS), "colour2": rng.choice(COLOURS), "size": rng.choice(SIZES[:6]),
              "mood": rng.choice(MOODS), "trait": rng.choice(TRAITS), "weather": rng.choice(WEATHERS)}
    return slots


def sentences(beats: list[str], slots: dict[str, str], rng: random.Random) -> list[str]:
    return [fill(beat, slots, rng) for beat in beats]


def story(rng: random.Random, plot: str | None = None, slots: dict[str, str] | None = None) -> list[str]:
    """A story as its paragraphs."""
    slots = slots or slots_for(rng)
    beats = PLOTS[plot or rng.choice(list(PLOTS))]
    body = []
    for options in beats:
        if options[0].startswith("?"):                                       # a beat that may be left out
            if rng.random() < 0.5:
                continue
            options = [options[0][1:], *options[1:]]
        body.append(fill(rng.choice(options), slots, rng))
    parts = [fill(rng.choice(OPENINGS), slots, rng), *body, fill(rng.choice(ENDINGS), slots, rng)]
    if rng.random() < 0.4:
        parts.append(fill(rng.choice(MORALS), slots, rng))
    cut = rng.choice((2, 3, 4, len(parts)))
    paragraphs = [" ".join(parts[i:i + cut]) for i in range(0, len(parts), cut)]
    return [capital(p) for p in paragraphs]


def story_dialogue(rng: random.Random) -> list[dict]:
    """Someone asks for a story, or for the rest of one."""
    slots = slots_for(rng)
    plot = rng.choice(list(PLOTS))
    paragraphs = story(rng, plot, slots)
    roll = rng.random()
    subject = f"a {slots['hero_kind']}" if slots["hero_kind"] not in ("girl", "boy") else \
        f"a {slots['hero_kind']} named {slots['hero']}"
    if roll < 0.5:
        ask = fill(rng.choice((
            "[Tell me|Write|Can you tell me|Please write|I would like] a [short |little |]story about {s}[.|]",
            "[Write|Tell me|Make up] a [short |bedtime |]story [about|with] {s} and a {toy}.",
            "Story about {s}, please.", "Could you tell a story about {s} in a {place}?",
            "Tell me a story.", "Write a short story.")), {**slots, "s": subject}, rng)
        if ask.startswith(("Tell me a story.", "Write a short story.")):
            think = f"The user wants a story. I will write about {subject}."
        else:
            think = f"The user wants a story about {subject}."
        answer = "\n\n".join(paragraphs)
    elif roll < 0.85:
        words = " ".join(paragraphs).split(" ")
        ends = [i + 1 for i, w in enumerate(words[:-25]) if w.endswith((".", "!")) and i > 8]
        cut = rng.choice(ends) if ends and rng.random() < 0.7 else rng.randint(8, max(9, len(words) // 2))
        ask = fill(rng.choice(("Continue [this|the] story: {t}", "[Please c|C]ontinue[ the story|]: {t}", "What happens next? {t}",
                               "Finish this story:\n\n{t}", "Continue this story in simple English:\n\n{t}")),
                   {"t": " ".join(words[:cut])}, rng)
        think = rng.choice(("I will go on with the story.", f"The story is about {slots['hero']}. I will go on."))
        answer = " ".join(words[cut:])
    else:
        ask = fill("[Who is|What is the name of the hero of|Who is the hero of] this story[ about|]? {t}".replace(" about", ""),
                   {"t": " ".join(paragraphs)}, rng)
        think = f"The story is about {slots['hero']}."
        answer = f"The story is about {slots['hero']}."
    return [{"role": "user", "content": ask}, {"role": "assistant", "reasoning_content": think, "content": answer}]
