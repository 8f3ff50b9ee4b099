"""Layer kinds that several architectures are composed of."""
