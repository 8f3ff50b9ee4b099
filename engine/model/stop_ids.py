"""Which tokens end a turn: what the file names, and what its vocabulary holds of the texts that are known to.

Read from metadata alone. The texts are facts of the published tokenizers.
"""

from collections.abc import Collection

from engine.errors import BadModel
from engine.gguf import ModelFiles

_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["})
_HARMONY = {"<|return|>", "<|call|>"}  # where both are, <|end|> only ends a message inside the turn
_NORMAL = 1


def find_stop_ids(files: ModelFiles, texts: Collection[str] = ()) -> tuple[int, ...]:
    """Ascending ids; none for a file without a vocabulary. `texts` are further tokens, which a pack names."""
    metadata = files.metadata
    if metadata.get("tokenizer.ggml.model", "no_vocab") == "no_vocab":
        return ()
    tokens = files.array("tokenizer.ggml.tokens")
    types = files.array("tokenizer.ggml.token_type", [])
    by_text = {text: i for i, text in enumerate(tokens) if text in _TEXTS and not (i < len(types) and types[i] == _NORMAL)}
    if by_text.keys() >= _HARMONY:
        by_text.pop("<|end|>", None)
    if metadata["tokenizer.ggml.model"] == "gemma4":
        by_text.pop("</s>", None)
    named = {metadata[key] for key in _KEYS if isinstance(metadata.get(key), int)}
    missing = [text for text in texts if text not in tokens]
    if missing:
        raise BadModel(f"the pack names the stop token {missing[0]!r}, which the vocabulary does not have")
    named |= {i for i, text in enumerate(tokens) if text in texts}
    return tuple(sorted(i for i in named | set(by_text.values()) if 0 <= i < len(tokens)))
