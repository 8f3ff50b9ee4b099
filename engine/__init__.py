"""terrace engine: token ids in, token ids out, over lines on stdin and stdout."""
