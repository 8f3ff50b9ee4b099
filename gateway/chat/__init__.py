"""From an API's request to prompt ids: the typed request, the history's rules, the model's template."""
