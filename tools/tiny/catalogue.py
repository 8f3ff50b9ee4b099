"""The tools of the generated conversations: names, parameters, how people ask for them, and what they give back.

Data and small outcome functions. Slots {a0}, {a1}, … are the arguments in order.
"""
from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

Outcome = Callable[[random.Random, dict[str, str]], tuple[str, str]]


@dataclass(frozen=True)
class Spec:
    """One kind of tool; `names` and parameter names are `a|b|c` alternatives, `twice` allows two calls in a turn."""

    names: str
    about: str
    params: tuple[tuple[str, str, str], ...]          # names, kind, description
    asks: tuple[str, ...]
    goal: str                                         # completes "The user wants …"
    outcome: Outcome
    twice: bool = False


def weather(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
    degrees, sky = rng.randint(-10, 38), rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear"))
    result = rng.choice((json.dumps({"temperature": degrees, "condition": sky}), f"{degrees} degrees, {sky}",
                         json.dumps({"city": s["a0"], "temp_c": degrees, "sky": sky}), f"{sky}, {degrees} C"))
    return result, f"It is {sky} in {s['a0']}, and the temperature is {degrees} degrees."


def clock(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
    t = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return rng.choice((t, json.dumps({"time": t}), json.dumps({"city": s["a0"], "time": t}))), f"It is {t} in {s['a0']}."


def arithmetic(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
    a, op, b = s["a0"].split()
    r = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": round(int(a) / int(b), 2)}[op]
    return rng.choice((str(r), json.dumps({"result": r}))), f"{s['a0']} = {r}."


def said(answer: str) -> Outcome:
    """An action that only succeeds."""
    def outcome(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
        return rng.choice(("ok", "done", '{"status": "ok"}', '{"success": true}', '{"status": "done"}', "OK")), answer.format(**s)
    return outcome


def number(key: str, low: int, high: int, answer: str) -> Outcome:
    """A lookup that returns one number."""
    def outcome(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
        n = rng.randint(low, high)
        return rng.choice((str(n), json.dumps({key: n}))), answer.format(n=n, **s)
    return outcome


def phrase(key: str, options: tuple[str, ...], answer: str) -> Outcome:
    """A lookup that returns one of a few texts."""
    def outcome(rng: random.Random, s: dict[str, str]) -> tuple[str, str]:
        text = rng.choice(options)
        return rng.choice((text, json.dumps({key: text}))), answer.format(t=text, **s)
    return outcome


CATALOGUE = [
    Spec("get_weather|get_weather|weather|get_current_weather|current_weather|weather_lookup|get_forecast",
         "Get the [current |]weather [in|for] a [city|place].", (("city|city|location|place|town", "city", "The name of the city."),),
         ("What is the weather [like |]in {a0}[ today| right now| now|]?", "How is the weather in {a0}?", "Is it [raining|cold|warm|sunny] in {a0}?",
          "[Tell me|Check|Get] the weather [in|for] {a0}[.|, please.]", "What's the weather in {a0}?", "weather in {a0}",
          "Do I need [a coat|an umbrella] in {a0} today?", "How [warm|cold|hot] is it in {a0}?"),
         "the weather in {a0}", weather, twice=True),
    Spec("get_time|time_in|current_time|get_local_time|clock", "Get the [current|local] time in a city.",
         (("city|location|place|timezone", "city", "The city."),),
         ("What time is it in {a0}?", "Tell me the time in {a0}.", "What is the time in {a0}[ now|]?", "How late is it in {a0}?"),
         "the time in {a0}", clock, twice=True),
    Spec("calculate|calculator|evaluate|compute|math", "[Calculate|Evaluate|Work out] an arithmetic expression.",
         (("expression|expression|formula|input", "expression", "The expression to calculate."),),
         ("What is {a0}?", "Calculate {a0}[.|, please.]", "How much is {a0}?", "Use the calculator for {a0}.", "{a0}"),
         "{a0} calculated", arithmetic),
    Spec("send_message|send_text|message|send_sms|text_person", "Send a [text |]message to [a person|somebody].",
         (("to|recipient|name|person", "name", "Who gets the message."), ("text|message|body|content", "message", "The text.")),
         ('[Tell|Text|Message|Write to] {a0}: "{a1}".', 'Send {a0} [a message|the message]: {a1}', 'Send "{a1}" to {a0}.', "Tell {a0}: {a1}"),
         "to send a message to {a0}", said("I sent the message to {a0}.")),
    Spec("send_email|email|mail", "Send an e-mail.", (("to|address|recipient", "email", "The address."), ("subject|title", "message", "The subject line.")),
         ('[Write|Send] an e-mail to {a0} with the subject "{a1}".', 'Email {a0} with subject "{a1}".'),
         "to write to {a0}", said("I sent the e-mail to {a0}.")),
    Spec("set_timer|start_timer|timer|create_timer", "[Set|Start] a timer.", (("minutes|duration_minutes|minutes|duration", "small", "How many minutes."),),
         ("Set a timer for {a0} minutes.", "[Start|Set] a {a0} minute timer[.|, please.]", "Remind me in {a0} minutes.", "Timer for {a0} minutes"),
         "a timer for {a0} minutes", said("The timer is set for {a0} minutes.")),
    Spec("set_alarm|create_alarm|alarm", "Set an alarm.", (("time|at|hour", "time", "The time as HH:MM."),),
         ("[Set an alarm for|Wake me up at|Wake me at] {a0}[.|, please.]", "I have to get up at {a0}."), "an alarm at {a0}", said("The alarm is set for {a0}.")),
    Spec("add_reminder|create_reminder|remind|set_reminder", "[Add|Create] a reminder.",
         (("text|task|what|title", "task", "What to remember."), ("day|date|when", "day", "The day.")),
         ("Remind me {a1} to {a0}.", "[Add|Create] a reminder for {a1}: {a0}", "I must not forget to {a0} {a1}."), "a reminder to {a0}", said("I will remind you to {a0}.")),
    Spec("search_web|search|web_search|google|find_information", "Search the [web|internet].", (("query|q|search|text", "topic", "What to look for."),),
         ("[Search|Look|Search the web] for {a0}.", "[Find|Show me|Look up] {a0}[.|, please.]", "Search: {a0}"), "to find {a0}",
         phrase("result", ("three pages found", "no results", "ten results found", "one article found"), "The search for {a0} gave: {t}.")),
    Spec("translate|translate_text|translator", "Translate [a text|text] into another language.",
         (("text|phrase|input", "message", "The text."), ("language|to|target_language|target", "language", "The language to translate into.")),
         ('[Translate|Please translate] "{a0}" [into|to] {a1}.', 'How do you say "{a0}" in {a1}?', 'What is "{a0}" in {a1}?'), "a translation into {a1}",
         phrase("translation", ("Hola", "Guten Tag", "Bonjour", "Ciao", "Merci", "Gracias", "Danke"), "In {a1} it is: {t}.")),
    Spec("play_music|play_song|play|start_music", "Play [a song|music].", (("song|title|track|name", "song", "The title."),),
         ("Play {a0}[.|, please.]", "[I want to hear|Put on|Can you play] {a0}[.|, please.]", "Play the song {a0}."), "to hear {a0}", said("Now playing {a0}.")),
    Spec("set_light|switch_light|light|control_lights", "[Switch|Turn] a light on or off.", (("room|where|location", "room", "The room."), ("on|state|enabled", "flag", "True for on.")),
         ("[Turn|Switch] {a1} the light in the {a0}.", "[Turn|Switch] the {a0} [light|lights] {a1}[.|, please.]", "Lights {a1} in the {a0}"), "the light in the {a0} {a1}",
         said("The light in the {a0} is now {a1}.")),
    Spec("set_temperature|set_heating|thermostat|heat_room", "Set the temperature of a room.", (("room|where", "room", "The room."), ("degrees|temperature|celsius", "small", "Degrees.")),
         ("[Set|Heat] the {a0} to {a1} degrees.", "Make it {a1} degrees in the {a0}."), "the {a0} at {a1} degrees", said("The {a0} is set to {a1} degrees.")),
    Spec("add_item|add_to_list|shopping_list_add|add_to_cart|order", "[Add|Put] something [to|on] the shopping list.", (("item|product|name", "item", "The thing."), ("count|quantity|amount|number", "small", "How many.")),
         ("[Add|Put] {a1} {a0} [to|on] [my|the] [shopping |]list.", "[I need|Order|Buy] {a1} {a0}[.|, please.]", "{a1} {a0}, please."), "{a1} {a0} on the list", said("I added {a1} {a0} to the list.")),
    Spec("get_stock_price|stock_price|quote|stock", "Get the price of a [stock|share].", (("symbol|ticker|code", "code", "The symbol."),),
         ("What is the [stock price|price] of {a0}?", "How much is {a0} [stock|worth]?", "[Get|Show] the [price|stock price] of {a0}."), "the price of {a0}", number("price", 5, 900, "{a0} is at {n}."), twice=True),
    Spec("find_restaurant|restaurants|search_restaurants|find_food", "Find a restaurant in a city.", (("city|location|town", "city", "The city."),),
         ("Find a [good |]restaurant in {a0}.", "Where can I eat in {a0}?", "I am hungry and I am in {a0}."), "a restaurant in {a0}",
         phrase("name", ("The Golden Fork", "Blue Door", "Old Mill", "Chez Rosa", "The Green Table"), "You could try {t} in {a0}.")),
    Spec("roll_dice|dice|roll|roll_die", "Roll a die.", (("sides|faces|n", "small", "Number of sides."),),
         ("Roll a [die|dice] with {a0} sides.", "Roll a {a0}-sided die[.|, please.]"), "a die with {a0} sides", number("value", 1, 6, "You rolled a {n}.")),
    Spec("read_file|open_file|cat|get_file|load_file", "Read a [text |]file.", (("path|file|filename|name", "path", "The file to read."),),
         ("[Read|Open|Show me|Show] [the file |]{a0}[.|, please.]", "What is in {a0}?", "What does {a0} say?"), "to read {a0}",
         phrase("content", ("Buy milk.", "Meeting at nine.", "Hello world", "The file is empty.", "Water the plants.", "Do not forget the keys."), "It says: {t}")),
    Spec("define_word|dictionary|define|lookup_word|word_meaning", "Look up [a word|the meaning of a word].", (("word|term|text", "word", "The word."),),
         ("[Define|Look up] [the word |]{a0}.", "Look up the meaning of {a0}."), "the meaning of {a0}", phrase("meaning", ("a noun", "a verb", "an adjective", "no entry found"), "The dictionary says: {t}.")),
    Spec("get_population|population|city_population|inhabitants", "Get the number of people in a city.", (("city|name|place", "city", "The city."),),
         ("How many people live in {a0}?", "What is the population of {a0}?", "How big is {a0}?"), "the population of {a0}", number("population", 10000, 9000000, "{n} people live in {a0}."), twice=True),
    Spec("track_parcel|track_order|order_status|get_order|find_order", "[Track|Find] an order.", (("id|order_id|number|order", "id", "The order number."),),
         ("Where is [my order|order|parcel|my parcel] {a0}?", "[Track|Check] [the |]order {a0}.", "What is the status of {a0}?"), "the status of {a0}",
         phrase("status", ("shipped", "delivered", "on the way", "not found", "waiting"), "The status of {a0} is: {t}.")),
    Spec("set_volume|volume|change_volume", "Set the [sound |]volume.", (("level|percent|volume|value", "percent", "From 0 to 100."),),
         ("[Set|Turn] the volume to {a0}[ percent|].", "Volume {a0}", "Make it {a0} percent loud."), "the volume at {a0}", said("The volume is now {a0}.")),
    Spec("book_table|reserve_table|make_reservation|reserve", "[Book|Reserve] a table.", (("people|guests|persons|count", "small", "Number of guests."), ("time|at", "time", "The time.")),
         ("[Book|Reserve] a table for {a0} [people |]at {a1}.", "We are {a0} people and want to eat at {a1}."), "a table for {a0}", said("I booked a table for {a0} at {a1}.")),
    Spec("paint|set_color|change_colour|set_colour|color", "Change the colour of something.", (("color|colour|to|value", "colour", "The colour."),),
         ("[Make|Paint] it {a0}[.|, please.]", "Change the [colour|color] to {a0}.", "I want it {a0}."), "it {a0}", said("It is {a0} now.")),
]

VERBS = ["open", "close", "start", "stop", "create", "delete", "update", "move", "copy", "send", "find", "check", "clean", "count", "draw", "fetch", "fix", "get", "hide", "join", "list", "load", "lock", "make", "mark", "measure", "merge", "open", "order", "pack", "park", "pause", "print", "push", "read", "rename", "repair", "reset", "save", "scan", "select", "share", "show", "sort", "split", "store", "test", "track", "turn", "unlock", "update", "view", "watch", "write", "cancel", "add", "remove", "run"]
NOUNS = ["account", "album", "alarm", "basket", "bill", "board", "book", "box", "camera", "car", "card", "chart", "code", "contact", "customer", "device", "door", "drawing", "engine", "event", "field", "file", "folder", "game", "gate", "group", "house", "image", "invoice", "item", "job", "key", "lamp", "letter", "list", "lock", "machine", "map", "meeting", "menu", "message", "model", "note", "page", "parcel", "photo", "picture", "plan", "player", "pump", "queue", "radio", "record", "report", "robot", "room", "server", "shop", "signal", "song", "store", "table", "tank", "task", "team", "ticket", "tower", "train", "user", "valve", "video", "wall", "window"]
PARAMETERS = [("id", "id"), ("name", "name"), ("city", "city"), ("count", "number"), ("level", "percent"), ("time", "time"),
              ("day", "day"), ("color", "colour"), ("room", "room"), ("email", "email"), ("code", "code"), ("path", "path"),
              ("size", "small"), ("language", "language"), ("item", "item"), ("user", "name"), ("speed", "percent"),
              ("width", "number"), ("height", "number"), ("target", "id"), ("date", "day"), ("enabled", "flag"),
              ("owner", "name"), ("price", "number"), ("key", "code"), ("destination", "city"), ("word", "word"),
              ("number", "number"), ("a", "number"), ("b", "number"), ("x", "number"), ("y", "number"), ("label", "word")]
