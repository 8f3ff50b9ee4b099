"""Word lists of the generated texts, and the little grammar that fills templates.

A template mixes `{slots}` with `[one|or|another]` choices, which nest. Knows nothing of what the templates say.
"""
from __future__ import annotations

import random
import re

GIRLS = ["Anna", "Lily", "Mia", "Emma", "Sara", "Nora", "Ella", "Zoe", "Ruby", "Clara", "Ivy", "Rosa", "Maya", "Lucy", "Alice", "Hana", "Priya", "Amara", "Freya", "Greta", "Ines", "Jane", "Kate", "Leila", "Molly", "Nina", "Olive", "Penny", "Rita", "Sofia", "Tess", "Uma", "Vera", "Wendy", "Yara"]
BOYS = ["Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Finn", "Noah", "Omar", "Paul", "Hugo", "Ivan", "Adam", "Carl", "Dan", "Eli", "Felix", "George", "Henry", "Ian", "Jonas", "Kofi", "Luca", "Marco", "Nico", "Oscar", "Peter", "Ravi", "Simon", "Theo", "Victor", "Will", "Yusuf", "Zack", "Arthur"]
ANIMALS = ["fox", "rabbit", "bear", "mouse", "owl", "hedgehog", "squirrel", "frog", "duck", "turtle", "cat", "dog", "lamb", "pony", "goat", "beaver", "badger", "deer", "kitten", "puppy", "penguin", "elephant", "lion", "monkey", "otter", "mole", "sparrow", "crow", "robin", "donkey", "dragon", "robot", "wolf", "tiger", "horse", "cow", "pig", "hen", "whale", "snail", "bee", "butterfly", "parrot", "dolphin", "giraffe", "camel", "goose", "seal", "hamster", "wizard", "knight", "king", "queen"]
PLACES = ["forest", "village", "garden", "park", "beach", "farm", "meadow", "river", "lake", "hill", "mountain", "valley", "town", "market", "barn", "harbour", "island", "orchard", "castle", "cave", "field", "pond", "library", "school", "kitchen", "workshop", "bakery", "lighthouse"]
HOMES = ["a small house", "a little cottage", "a tall white house", "a quiet village", "a busy town", "an old farmhouse", "a cosy hut", "a house by the sea", "a flat above a bakery", "a wooden cabin"]
NATURE_HOMES = ["a deep forest", "a hollow tree", "a green valley", "a burrow under a hill", "a nest of leaves", "a quiet pond", "a sunny meadow", "an old barn", "a cave near the river"]
TOYS = ["ball", "kite", "drum", "doll", "boat", "train", "book", "whistle", "puzzle", "hat", "scarf", "lantern", "teddy", "bucket", "spade", "marble", "balloon", "flute", "basket", "blanket", "paintbrush", "wagon", "mirror", "key", "map"]
FOODS = ["apple", "pear", "cake", "cookie", "sandwich", "biscuit", "bun", "pie", "carrot", "peach", "plum", "muffin", "pancake", "berry", "nut", "waffle", "pumpkin", "melon", "banana", "orange"]
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "orange", "purple", "pink", "silver", "golden", "grey"]
SIZES = ["big", "small", "tiny", "huge", "little", "tall", "short", "round", "long", "wide"]
MOODS = ["happy", "sad", "angry", "tired", "proud", "scared", "excited", "calm", "lonely", "curious", "worried", "brave"]
TRAITS = ["kind", "brave", "clever", "shy", "curious", "gentle", "cheerful", "patient", "stubborn", "careful", "honest", "friendly", "lazy", "noisy", "quiet"]
WEATHERS = ["The sun was shining", "It was a warm morning", "A cool wind was blowing", "It was raining softly", "Snow lay on the ground", "The sky was blue and clear", "Grey clouds hung over the hills", "It was a bright spring day", "The leaves were turning red", "The air smelled of flowers", "Fog covered the fields", "It was a quiet evening"]
CITIES = ["Paris", "London", "Rome", "Berlin", "Madrid", "Tokyo", "Cairo", "Lima", "Oslo", "Vienna", "Athens", "Dublin", "Lisbon", "Prague", "Warsaw", "Delhi", "Sydney", "Toronto", "Chicago", "Boston", "Seattle", "Denver", "Nairobi", "Lagos", "Seoul", "Bangkok", "Hanoi", "Havana", "Quito", "Bern", "Zurich", "Munich", "Hamburg", "Milan", "Naples", "Porto", "Geneva", "Helsinki", "Stockholm", "Copenhagen", "Budapest", "Istanbul", "Moscow", "Mumbai", "Shanghai", "Beijing", "Osaka", "Singapore", "Auckland", "Dallas", "Houston", "Miami", "Montreal", "Vancouver"]

SLOT = re.compile(r"\{(\w+)\}")
CHOICE = re.compile(r"\[([^\[\]]*)\]")
ARTICLE = re.compile(r"\b([Aa]) (?=(?:[aeioAEIO]|u[^ns]|un[^i])\w)")


def fill(template: str, slots: dict[str, str], rng: random.Random) -> str:
    """One reading of a template: choices made, slots filled, `a` turned to `an` where a vowel follows."""
    while True:
        text, n = CHOICE.subn(lambda m: rng.choice(m[1].split("|")), template)
        if not n:
            break
        template = text
    return ARTICLE.sub(r"\1n ", SLOT.sub(lambda m: slots[m[1]], text))


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(noun: str) -> str:
    """Regular English plurals, with the few irregular nouns of the lists above."""
    irregular = {"mouse": "mice", "deer": "deer", "child": "children", "foot": "feet", "tooth": "teeth", "goose": "geese",
                 "man": "men", "woman": "women", "sheep": "sheep", "fish": "fish", "leaf": "leaves", "wolf": "wolves",
                 "knife": "knives", "person": "people", "ox": "oxen", "half": "halves", "life": "lives"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def listing(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
