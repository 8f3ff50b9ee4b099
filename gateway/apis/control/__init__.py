"""Our own API: status, one live feed, load, unload and restart of the engine, Prometheus metrics."""
