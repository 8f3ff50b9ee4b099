"""One package an API: requests in its shape to our own, events to its shape."""
