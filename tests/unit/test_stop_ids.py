"""Stop ids: what the file names, what its vocabulary holds, and what a pack adds."""

import pytest

from engine.errors import BadModel
from engine.gguf import open_model
from engine.model.stop_ids import find_stop_ids
from packs.gguf_file import write_gguf

TOKENS = ["<unk>", "a", "<|im_end|>", "b", "<stop>", "</s>"]


def _files(path, **metadata):
    values = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": TOKENS} | metadata
    write_gguf(path / "m.gguf", "llama", metadata=values, tensors={})
    return open_model(path / "m.gguf")


def test_named_ids_and_known_texts(tmp_path):
    with _files(tmp_path, **{"tokenizer.ggml.eos_token_id": 3}) as files:
        assert find_stop_ids(files) == (2, 3, 5)


def test_a_text_that_is_a_normal_token_does_not_stop(tmp_path):
    with _files(tmp_path, **{"tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3]}) as files:
        assert find_stop_ids(files) == (5,)


def test_a_pack_adds_tokens_by_text(tmp_path):
    with _files(tmp_path, **{"tokenizer.ggml.token_type": [1, 1, 3, 1, 1, 3]}) as files:
        assert find_stop_ids(files, texts=("<stop>",)) == (2, 4, 5)
        with pytest.raises(BadModel, match="'<gone>', which the vocabulary does not have"):
            find_stop_ids(files, texts=("<stop>", "<gone>"))


def test_no_vocabulary_no_stop_ids(tmp_path):
    write_gguf(tmp_path / "n.gguf", "llama", metadata={"tokenizer.ggml.model": "no_vocab"}, tensors={})
    with open_model(tmp_path / "n.gguf") as files:
        assert find_stop_ids(files) == ()
