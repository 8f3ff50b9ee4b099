"""What the server knows about itself: requests, machine, engine log, and snapshots of all that."""
