"""From one row of logits to one token, reproducibly: penalties, truncation, a draw keyed by position."""
