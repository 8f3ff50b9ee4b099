"""Arithmetic in conversation: worked out inside the thinking, then answered.

`work` writes the steps of a calculation; the answers are computed, never typed. No torch, no files.
"""
from __future__ import annotations

import random

from tools.tiny.words import BOYS, FOODS, GIRLS, TOYS, fill, plural

WORDS = {"+": ("plus", "add"), "-": ("minus", "subtract"), "*": ("times", "multiply"), "/": ("divided by", "divide")}
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(n: int) -> str:
    """English for 0 … 999."""
    if n < 20:
        return SMALL[n]
    if n < 100:
        return TENS[n // 10 - 2] + ("-" + SMALL[n % 10] if n % 10 else "")
    return SMALL[n // 100] + " hundred" + (" and " + in_words(n % 100) if n % 100 else "")


def apply(a: int, op: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]


def numbers(rng: random.Random, op: str) -> tuple[int, int]:
    """Two operands of mixed size, small ones most often; division comes out even."""
    top = rng.choice((10, 20, 20, 100, 100, 1000))
    if op in "+-":
        return rng.randint(0, top), rng.randint(0, top)
    top = rng.choice((10, 10, 12, 20))
    a, b = rng.randint(0, rng.choice((top, top, 99))), rng.randint(0, top)
    return (a, b) if op == "*" else (a * max(b, 1), max(b, 1))


def work(a: int, op: str, b: int) -> str:
    """The steps of one calculation, ending in `a op b = result`."""
    end = f"{a} {op} {b} = {apply(a, op, b)}"
    big = max(a, b) > 20
    if op == "+" and big and b >= 10:
        tens = b // 10 * 10
        return f"{a} + {tens} = {a + tens}. {a + tens} + {b - tens} = {a + b}. So {end}."
    if op == "-" and big and b >= 10:
        tens = b // 10 * 10
        return f"{a} - {tens} = {a - tens}. {a - tens} - {b - tens} = {a - b}. So {end}."
    if op == "*" and a > 10 and b > 1:
        tens = a // 10 * 10
        return f"{tens} * {b} = {tens * b}. {a - tens} * {b} = {(a - tens) * b}. {tens * b} + {(a - tens) * b} = {a * b}. So {end}."
    if op == "/":
        return f"{a // b} * {b} = {a}. So {end}."
    return f"{end}."


def plain_sum(rng: random.Random) -> list[dict]:
    op = rng.choice("+++--**/")
    a, b = numbers(rng, op)
    word, _verb = WORDS[op]
    sign = {"*": rng.choice("**x×"), "/": rng.choice("//÷")}.get(op, op)
    gap = rng.choice(("", "", " "))
    forms = [f"{a}{gap}{sign}{gap}{b}", f"{a}{gap}{sign}{gap}{b}", f"{a} {word} {b}"]
    if max(a, b) < 100:
        forms.append(f"{in_words(a)} {word} {in_words(b)}")
    if op == "+":
        forms.append(f"the sum of {a} and {b}")
    if op == "*":
        forms.append(f"the product of {a} and {b}")
    if op == "-" and a >= b:
        forms.append(f"the difference between {a} and {b}")
    form = rng.choice(forms)
    asks = [f"What is {form}?", f"What is {form}?", f"What's {form}?", f"How much is {form}?", f"Calculate {form}.",
            f"Compute {form}.", f"{form}", f"{form} = ?", f"{form}?", f"Can you tell me what {form} is?",
            f"Please calculate {form}.", f"what is {form}", f"Hi! What is {form}?", f"Solve: {form}"]
    if op == "+":
        asks.append(f"Add {a} and {b}.")
    if op == "-":
        asks.append(f"Subtract {b} from {a}.")
    if op == "/":
        asks.append(f"Divide {a} by {b}.")
    if op == "*":
        asks.append(f"Multiply {a} by {b}.")
    result = apply(a, op, b)
    shown = {"*": "×", "/": "÷"}.get(op, op) if rng.random() < 0.2 else op
    answer = rng.choice((f"{a} {shown} {b} = {result}.", f"{a} {shown} {b} = {result}", f"The answer is {result}.",
                         f"{a} {word} {b} is {result}.", f"{result}"))
    return turn(rng, rng.choice(asks), work(a, op, b), answer)


def chain_sum(rng: random.Random) -> list[dict]:
    """Three numbers, or brackets."""
    a, b, c = (rng.randint(1, 20) for _ in range(3))
    if rng.random() < 0.5:
        op = rng.choice("+-")
        first = apply(a, op, b)
        ask, steps, result = f"{a} {op} {b} + {c}", f"{a} {op} {b} = {first}. {first} + {c} = {first + c}.", first + c
    else:
        first = (a + b)
        ask, steps, result = f"({a} + {b}) * {c}", f"{a} + {b} = {first}. {work(first, '*', c)}", first * c
    if rng.random() < 0.5:
        ask = ask.replace(" ", "")
    return turn(rng, rng.choice((f"What is {ask}?", f"Calculate {ask}.", ask)), steps, f"The answer is {result}.")


def word_problem(rng: random.Random) -> list[dict]:
    girl = rng.random() < 0.5
    names = GIRLS if girl else BOYS
    name, he = rng.choice(names), "she" if girl else "he"
    pal = rng.choice([n for n in GIRLS + BOYS if n != name])
    thing = plural(rng.choice(FOODS + TOYS))
    a, b = rng.randint(1, rng.choice((10, 20, 50))), rng.randint(1, 12)
    kind = rng.randrange(4)
    s = {"n": name, "he": he, "p": pal, "t": thing, "a": str(a), "b": str(b), "ab": str(a + b)}
    if kind == 0:
        ask = fill("{n} has {a} {t}. {p} gives {n} {b} more. How many {t} does {n} have[ now|]?", s, rng)
        steps, result = work(a, "+", b), a + b
    elif kind == 1:
        ask = fill("{n} has {ab} {t}. {n} [gives {b} to {p}|loses {b} of them|sells {b}]. How many {t} are left?", s, rng)
        steps, result = work(a + b, "-", b), a
    elif kind == 2:
        ask = fill("There are {b} boxes with {a} {t} in each. How many {t} are there[ in all|]?", s, rng)
        steps, result = work(a, "*", b), a * b
    else:
        s["ab"] = str(a * b)
        ask = fill("{n} shares {ab} {t} equally among {b} friends. How many {t} does each friend get?", s, rng)
        steps, result = work(a * b, "/", b), a
    answer = {0: f"{name} has {result} {thing}.", 1: f"There are {result} {thing} left.",
              2: f"There are {result} {thing}.", 3: f"Each friend gets {result} {thing}."}[kind]
    return turn(rng, ask, steps, answer)


def comparison(rng: random.Random) -> list[dict]:
    a, b = rng.sample(range(rng.choice((20, 100, 1000))), 2)
    if rng.random() < 0.5:
        return turn(rng, rng.choice((f"Which is bigger, {a} or {b}?", f"Which number is larger: {a} or {b}?")),
                    f"{max(a, b)} > {min(a, b)}.", f"{max(a, b)} is bigger than {min(a, b)}.")
    if rng.random() < 0.5:
        return turn(rng, f"Is {a} even or odd?", f"{a} ends in {a % 10}.", f"{a} is {'odd' if a % 2 else 'even'}.")
    step = rng.choice((1, 2, 3, 5, 10))
    first = rng.randint(0, 30)
    row = [first + i * step for i in range(5)]
    return turn(rng, f"What comes next: {', '.join(map(str, row[:4]))}?", f"The numbers go up by {step}. {work(row[3], '+', step)}",
                f"The next number is {row[4]}.")


def turn(rng: random.Random, ask: str, steps: str, answer: str) -> list[dict]:
    think = steps if rng.random() < 0.7 else f"{rng.choice(('Let me calculate.', 'I need to calculate this.'))} {steps}"
    return [{"role": "user", "content": ask}, {"role": "assistant", "reasoning_content": think, "content": answer}]


def sum_dialogue(rng: random.Random) -> list[dict]:
    """One of the kinds above; plain sums most often."""
    return rng.choices((plain_sum, chain_sum, word_problem, comparison), (6, 1, 2, 1))[0](rng)
