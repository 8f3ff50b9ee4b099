"""`qwen3moe` (Qwen3-30B-A3B): heads are normed before the rotation, softmax over all experts, chosen weights add up to 1."""

from engine.backend.base import Backend, Moe
from engine.model.base import Hyper, Tensors
from engine.model.layers.decoder import attention_spec, decoder_layer


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    attention = attention_spec(hyper, tensors, adjacent=False)
    experts = hyper.integer("expert_count")
    moe = Moe(experts, hyper.integer("expert_used_count", high=experts), normalise=True,
              weight_scale=hyper.number("expert_weights_scale", 0.0) or 1.0)
    x = backend.embed(tensors["token_embd.weight"])
    for layer in range(hyper.layers):
        x = decoder_layer(backend, x, layer, tensors, attention=attention, moe=moe, head_norms=True)
    backend.head(backend.norm(x, tensors["output_norm.weight"], eps=attention.eps), tensors.head())
