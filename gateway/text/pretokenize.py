"""How text is cut into words before byte-pair merging, by the file's `tokenizer.ggml.pre`.

A rule is a list of patterns. Each isolates its matches inside the pieces that the patterns before it left. The patterns
are the ones the models were trained with (Oniguruma syntax, as the `tokenizers` library reads it). Data only.
"""

from __future__ import annotations

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PUNCTUATION_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CJK = "[一-龥ࠀ-一가-퟿]+"

# DeepSeek's letter class: cased letters without the blocks that were missing from the Unicode version it was built on.
_DEEPSEEK_LETTERS = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}\x{10CD}\x{10D0}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}\x{1D400}-\x{1D7CB}\x{1DF00}-\x{1DF2A}]]"
)


def _cased_words(suffix: str) -> str:
    """Words that end where the case pattern Aaa or AAA ends, with an optional suffix."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return rf"{head}{_UPPER}*{_LOWER}+{suffix}|{head}{_UPPER}+{_LOWER}*{suffix}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_UNNAMED = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")  # for files that name no rule
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)
_QWEN2 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}",)
_QWEN35 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",)
_LLAMA3 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}",)
_GPT4O = (rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_PUNCTUATION_OR_SLASH}|{_SPACES}",)
_TEKKEN = (rf"{_cased_words('')}|\p{{N}}|{_PUNCTUATION_OR_SLASH}|{_SPACES}",)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}+",
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)

GEMMA4_PATTERNS = (r"[^\n]+|[\n]+",)

PATTERNS: dict[str, tuple[str, ...]] = {
    "default": _UNNAMED,
    "gpt-2": (_GPT2,),
    "phi-2": (_GPT2,),
    "olmo": (_GPT2,),
    "granite-docling": (_GPT2,),
    "mellum": (_GPT2,),
    "mpt": (_GPT2,),
    "refact": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "command-r": _DIGITS_THEN_GPT2,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
    "tekken": _TEKKEN,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-v3": _DEEPSEEK_V3,
    "hunyuan-dense": _DEEPSEEK_V3,
    "joyai-llm": _DEEPSEEK_V3,
}

# A whole word that is a token is taken as it is, whatever the merges would make of it.
WHOLE_WORD_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"})

# These put the begin-of-text token in front when the file does not say whether to.
ADDS_BOS = WHOLE_WORD_FIRST
