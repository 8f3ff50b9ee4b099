"""Names of architectures: those there are, those there are not, and draft heads, which are not models."""

import pytest

from engine.errors import BadModel
from engine.model.registry import ARCHITECTURES, DRAFT_HEADS, architecture
from tools.random_model import RECIPES


def test_every_architecture_has_a_random_model_and_the_other_way_round():
    assert {recipe.architecture for recipe in RECIPES.values()} == set(ARCHITECTURES)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(BadModel, match=r"'gemma5' is not supported; supported are .*\bgemma4\b"):
        architecture("gemma5")


@pytest.mark.parametrize("name", DRAFT_HEADS)
def test_a_draft_head_is_told_apart_from_a_model(name):
    assert DRAFT_HEADS[name] in ARCHITECTURES and name not in ARCHITECTURES
    with pytest.raises(BadModel, match=f"{name}.* is a draft head of {DRAFT_HEADS[name]} models: it cannot run alone"):
        architecture(name)
