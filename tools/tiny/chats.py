"""Short conversations: small talk, facts, word meanings, little tasks on words, and questions about what was just said.

Word meanings come from a glossary given by the caller. Answers to tasks are computed. No torch, no files.
"""
from __future__ import annotations

import random

from tools.tiny.facts import CAPITALS, DAYS, GENERAL, HUES, LEGS, MONTHS, OPPOSITES, PLANETS, SOUNDS, TALK, YOUNG
from tools.tiny.sums import in_words
from tools.tiny.words import ANIMALS, BOYS, CITIES, COLOURS, FOODS, GIRLS, PLACES, TOYS, TRAITS, fill, listing, plural

Glossary = list[tuple[str, str, str]]        # word, kind of word, meaning
Turn = tuple[str, str, str]                  # question, thought, answer

CONCRETE = (*TOYS, *FOODS, *ANIMALS, *PLACES)


def with_article(word: str) -> str:
    return fill("a " + word, {}, random.Random(0))


def talk(rng: random.Random) -> Turn:
    asks, answers = rng.choice(TALK)
    return rng.choice(asks), rng.choice(("I will give a short, friendly answer.", "This is small talk.", "A short answer is enough.")), rng.choice(answers)


def fact(rng: random.Random) -> Turn:
    match rng.randrange(9):
        case 0 | 1:
            land, city = rng.choice(list(CAPITALS.items()))
            if rng.random() < 0.7:
                ask = fill(rng.choice(("What is the capital of {l}?", "What's the capital of {l}?", "Capital of {l}?", "[Name|Tell me] the capital of {l}.",
                                       "Which city is the capital of {l}?", "what is the capital of {l}")), {"l": land}, rng)
                return ask, f"The capital of {land} is {city}.", rng.choice((f"The capital of {land} is {city}.", f"{city} is the capital of {land}."))
            return f"{city} is the capital of which country?", f"{city} is the capital of {land}.", f"{city} is the capital of {land}."
        case 2:
            pair = rng.choice(OPPOSITES)
            a, b = pair if rng.random() < 0.6 or pair[0] in ("new", "tall", "right", "heavy") else pair[::-1]
            if a in ("old", "short", "light", "wrong", "right"):
                a, b = {"old": ("old", "young"), "short": ("short", "long"), "light": ("light", "dark"), "wrong": ("wrong", "right"),
                        "right": ("right", "left")}[a]
            return (rng.choice((f"What is the opposite of {a}?", f"What is the opposite of \"{a}\"?", f"Opposite of {a}?")),
                    f"The opposite of {a} is {b}.", f"The opposite of {a} is {b}.")
        case 3:
            animal, sound = rng.choice(list(SOUNDS.items()))
            return (rng.choice((f"What sound does {with_article(animal)} make?", f"What does {with_article(animal)} say?")),
                    f"The question is about {with_article(animal)}.", f"{with_article(animal).capitalize()} {sound}.")
        case 4:
            animal, young = rng.choice(list(YOUNG.items()))
            return (f"What is a {'baby' if rng.random() < 0.5 else 'young'} {animal} called?", f"The question is about young {plural(animal)}.",
                    f"A young {animal} is called {with_article(young)}.")
        case 5:
            animal, legs = rng.choice(list(LEGS.items()))
            return (f"How many legs does {with_article(animal)} have?", f"The question is about {with_article(animal)}.",
                    f"{with_article(animal).capitalize()} has {in_words(legs) if legs else 'no'} legs.")
        case 6:
            thing, hue = rng.choice(list(HUES.items()))
            verb = "is"
            return f"What [colour|color] {verb} {thing}?".replace("[colour|color]", rng.choice(("colour", "color"))), f"The question is about {thing}.", \
                f"{thing[0].upper() + thing[1:]} is {hue}."
        case 7:
            row, what = rng.choice(((DAYS, "day"), (MONTHS, "month"), (PLANETS, "planet")))
            i = rng.randrange(len(row) - 1)
            if rng.random() < 0.5:
                return f"Which {what} comes after {row[i]}?", f"After {row[i]} comes {row[i + 1]}.", f"{row[i + 1]} comes after {row[i]}."
            return f"Which {what} comes before {row[i + 1]}?", f"Before {row[i + 1]} comes {row[i]}.", f"{row[i]} comes before {row[i + 1]}."
        case _:
            ask, answer = rng.choice(GENERAL)
            return ask, rng.choice(("I know this.", "This is a simple question.", "I will answer in one sentence.")), answer


def meaning(rng: random.Random, glossary: Glossary) -> Turn:
    word, kind, text = rng.choice(glossary)
    counted = kind == "noun" and text.startswith(("a ", "an "))              # `a lantern is …`, but `water is …`
    name = with_article(word) if counted else word
    asks = ["What does \"{w}\" mean?", "What does {w} mean?", "Define {w}.", "What is the meaning of {w}?", "Explain the word \"{w}\"."]
    if kind == "noun":
        asks += ["What is {a}?", "What is {a}?", "What is {a}?", "[Tell me|Explain] what {a} is.", "what is {a}"]
    ask = fill(rng.choice(asks), {"w": word, "a": name}, rng)
    if kind == "noun" and rng.random() < 0.8:
        answer = f"{name[0].upper() + name[1:]} is {text}."
    elif kind == "verb":
        answer = f"To {word} means to {text}."
    else:
        answer = f"The word \"{word}\" means {text}."
    return ask, f"The user asks about the {kind} \"{word}\".", answer


def task(rng: random.Random) -> Turn:
    word = rng.choice(CONCRETE)
    match rng.randrange(10):
        case 0:
            return f"What is the plural of {word}?", f"One {word}, two {plural(word)}.", f"The plural of {word} is {plural(word)}."
        case 1:
            return (rng.choice((f"Spell the word {word}.", f"How do you spell {word}?", f"Spell {word}.")), "I will write the letters one by one.", "-".join(word.upper()))
        case 2:
            return f"Write {word} in capital letters.", "I will use capital letters.", word.upper()
        case 3:
            text = fill(rng.choice(("The {c} {t} is {s}", "I like {f}", "{n} lives in {city}", "{n} has a {c} {t}")), pick(rng), rng)
            return rng.choice((f"Repeat after me: {text}.", f"Say: {text}.", f'Repeat: "{text}."')), "I will repeat it.", f"{text}."
        case 4:
            items = rng.sample(CONCRETE, rng.randint(3, 6))
            return f"Sort these words: {', '.join(items)}.", "I will sort them by their letters.", ", ".join(sorted(items))
        case 5:
            items = rng.sample(CONCRETE, rng.randint(2, 6))
            return f"How many words are in this list: {', '.join(items)}?", " ".join(f"{i + 1} {w}" for i, w in enumerate(items)) + ".", \
                f"There are {len(items)} words in the list."
        case 6:
            kind, row = rng.choice((("animals", ANIMALS), ("fruits", ["apple", "pear", "peach", "plum", "banana", "orange", "melon", "cherry", "grape", "lemon"]), ("colours", COLOURS),
                                    ("cities", CITIES), ("colors", COLOURS), ("boys' names", BOYS), ("girls' names", GIRLS)))
            n = rng.randint(2, 5)
            items = rng.sample(list(row), n)
            ask = rng.choice((f"Name {in_words(n)} {kind}.", f"List {n} {kind}.", f"Give me {in_words(n)} {kind}.", f"Tell me {in_words(n)} {kind}."))
            if rng.random() < 0.4:
                return ask, f"I will name {in_words(n)} {kind}.", "\n".join(f"{i + 1}. {w.capitalize()}" for i, w in enumerate(items))
            return ask, f"I will name {in_words(n)} {kind}.", listing(items)[0].upper() + listing(items)[1:] + "."
        case 7:
            start, end = sorted(rng.sample(range(1, 16), 2))
            return f"Count from {start} to {end}.", "I will count.", ", ".join(map(str, range(start, end + 1)))
        case 8:
            return (f"{rng.choice(('Use', 'Make a sentence with'))} the word {word}{' in a sentence' if rng.random() < 0.5 else ''}.", f"I need a sentence with {word}.",
                    fill(rng.choice(("{n} has a {w}.", "There is a {w} in the picture.", "I saw a {w} in {city}.", "The {w} is very {s}.")), {**pick(rng), "w": word}, rng))
        case _:
            n = rng.randint(1, 200)
            return f"Write {n} in words.", f"{n} is {in_words(n)}.", in_words(n).capitalize()


def pick(rng: random.Random) -> dict[str, str]:
    return {"c": rng.choice(COLOURS), "t": rng.choice(TOYS), "s": rng.choice(TRAITS), "f": plural(rng.choice(FOODS)), "n": rng.choice(GIRLS + BOYS),
            "city": rng.choice(CITIES)}


def reading(rng: random.Random) -> Turn:
    """A few sentences about people, then a question about one of them."""
    names = rng.sample(GIRLS + BOYS, rng.randint(2, 3))
    told = []
    for name in names:
        s = pick(rng)
        kind = rng.randrange(4)
        told.append([
            (f"{name} has a {s['c']} {s['t']}.", f"What does {name} have?", f"{name} has a {s['c']} {s['t']}."),
            (f"{name} lives in {s['city']}.", f"Where does {name} live?", f"{name} lives in {s['city']}."),
            (f"{name} likes {s['f']}.", f"What does {name} like?", f"{name} likes {s['f']}."),
            (f"{name}'s {s['t']} is {s['c']}.", f"What colour is {name}'s {s['t']}?", f"{name}'s {s['t']} is {s['c']}."),
        ][kind])
    told = [tuple(fill(x, {}, rng) for x in t) for t in told]
    text = " ".join(t[0] for t in told)
    chosen = rng.choice(told)
    return (f"{text} {chosen[1]}" if rng.random() < 0.7 else f"Read this: {text}\n\n{chosen[1]}"), f"The text says: {chosen[0]}", chosen[2]


def memory(rng: random.Random) -> list[Turn]:
    """The user says something about himself and asks for it later."""
    s = pick(rng)
    say, ask, answer, noted = rng.choice((
        (f"My name is {s['n']}.", "What is my name?", f"Your name is {s['n']}.", f"Nice to meet you, {s['n']}!"),
        (f"Hello, I am {s['n']}.", "Do you know my name?", f"Yes, your name is {s['n']}.", f"Hello {s['n']}! How can I help you?"),
        (f"I live in {s['city']}.", "Where do I live?", f"You live in {s['city']}.", f"{s['city']} is a nice city."),
        (f"My favourite colour is {s['c']}.", "What is my favourite colour?", f"Your favourite colour is {s['c']}.", f"I will remember that you like {s['c']}."),
        (f"I like {s['f']}.", "What do I like?", f"You like {s['f']}.", f"{s['f'].capitalize()} are good."),
    ))
    between = [talk(rng) if rng.random() < 0.4 else fact(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return [(say, "The user tells me something. I will remember it.", noted), *between, (ask, f"The user said: {say}", answer)]


def chat_dialogue(rng: random.Random, glossary: Glossary) -> list[dict]:
    """One to three turns."""
    if rng.random() < 0.12:
        turns = memory(rng)
    else:
        kinds = (lambda: talk(rng), lambda: fact(rng), lambda: meaning(rng, glossary), lambda: task(rng), lambda: reading(rng))
        turns = [rng.choices(kinds, (2, 3, 4, 2, 1.5))[0]() for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    messages = []
    for ask, think, answer in turns:
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "reasoning_content": think, "content": answer}]
    return messages
