"""`llama`: dense decoders, and Mixtral's form with experts. Rotary pairs are adjacent; chosen experts' weights add up to 1."""

from engine.backend.base import Backend, Moe
from engine.model.base import Hyper, Tensors
from engine.model.layers.decoder import attention_spec, decoder_layer


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    attention = attention_spec(hyper, tensors, adjacent=True)
    experts = hyper.integer("expert_count", 0, low=0)
    moe = Moe(experts, hyper.integer("expert_used_count", high=experts), normalise=True) if experts else None
    x = backend.embed(tensors["token_embd.weight"])
    for layer in range(hyper.layers):
        x = decoder_layer(backend, x, layer, tensors, attention=attention, moe=moe, head_norms=False)
    backend.head(backend.norm(x, tensors["output_norm.weight"], eps=attention.eps), tensors.head())
