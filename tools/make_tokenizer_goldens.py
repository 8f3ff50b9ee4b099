"""Writes tests/goldens/tokenizer_smollm2.json: what llama.cpp makes of a few dozen texts with SmolLM2's vocabulary.

    python -m tools.make_tokenizer_goldens MODEL.gguf tests/goldens/tokenizer_smollm2.json

Needs the peer (see tools/peer.py) and any GGUF with that vocabulary, such as the default pack's. The texts are our own.
"""

import argparse
import json
import random
from pathlib import Path

from tools.peer import Peer

TEXTS = (
    "",
    " ",
    "   ",
    "\n",
    "\n\n \n\t x",
    "\r\n a\r\n",
    "Hello, world!",
    "It's we'll I'M they'Re 'tis o'clock",
    "3 33 333 3333 3.1415 1,000,000 x2y3 ²³ Ⅷ ٣٤",
    "def f(x: int) -> str:\n    return f'{x!r}'\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; } // done",
    "https://example.org/a?b=c&d=%20e#f user@example.org",
    "日本語の文章と漢字、カタカナ。한국어 문장 ไทย हिन्दी",
    "Ñandú straße ÉTÉ ﬁn Ω≈ç√∫ cafe\u0301 ǅ",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 ☃️ \u200b\u200d\ufeff",
    "العربية עברית \u202eabc\u202c",
    "\u00a0\u2003\u3000x\u2028y\u2029z\u0085",
    "\x00\x01\x7f\ud7ff\ue000\uffff\U0010ffff",
    "a  b   c    d\te \n f",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_end|><|im_end|> <|endoftext|>x<|im_start|>",
    "<repo_name>a<file_sep>b<issue_start>",
    "<|im_start|",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "!!!???...---===___***((()))[[[]]]{{{}}}",
)
_ALPHABET = " \n\tabcXYZ019'.,!<|>é日👍\u00a0\r"
_RANDOM_TEXTS = 25


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    rng = random.Random(1)
    texts = [*TEXTS, *("".join(rng.choices(_ALPHABET, k=rng.randrange(1, 40))) for _ in range(_RANDOM_TEXTS))]
    peer = Peer(args.model, vocabulary_only=True)
    rows = [
        {"text": text, "special": special, "ids": peer.tokenize(text, special=special)}
        for text in texts
        for special in ((False, True) if "<" in text else (False,))
    ]
    args.out.write_text(json.dumps(rows, indent=None, separators=(",", ":")).replace('},{"text"', '},\n{"text"') + "\n")


if __name__ == "__main__":
    main()
