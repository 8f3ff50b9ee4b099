"""Everything that made the embedded pack: training text, tokenizer, the training model and its number formats.

Not part of the product: neither the engine nor the gateway imports it.
"""
