"""Our ids for a real vocabulary against those that llama.cpp gave (tools/make_tokenizer_goldens.py)."""

import json
from pathlib import Path

import pytest

from engine.errors import BadModel
from engine.gguf import read_metadata
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer
from gateway.text.vocabulary import METADATA_ARRAYS
from packs.manifest import fetched_pack, resolve_model

GOLDENS = Path(__file__).parents[1] / "goldens" / "tokenizer_smollm2.json"


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    try:
        source = resolve_model(fetched_pack())
    except BadModel as error:
        pytest.skip(str(error))
    if "smollm2" not in source.name.lower():
        pytest.skip(f"the fetched pack is {source.name}, not SmolLM2")
    return Tokenizer.from_metadata(read_metadata(source.model, arrays=METADATA_ARRAYS))


@pytest.mark.model
def test_ids_are_those_of_the_peer(smollm2: Tokenizer) -> None:
    rows = json.loads(GOLDENS.read_text())
    assert len(rows) > 50
    wrong = [
        (row["text"], row["ids"], ids)
        for row in rows
        if (ids := smollm2.encode(row["text"], parse_special=row["special"])) != row["ids"]
    ]
    assert wrong == []


@pytest.mark.model
def test_ids_give_the_text_back(smollm2: Tokenizer) -> None:
    for row in json.loads(GOLDENS.read_text()):
        if not row["special"]:
            detokenizer = Detokenizer(smollm2.vocabulary)
            assert "".join(map(detokenizer.feed, row["ids"])) + detokenizer.finish() == row["text"]
