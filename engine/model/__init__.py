"""Model architectures: what each is, written as calls on a backend."""
