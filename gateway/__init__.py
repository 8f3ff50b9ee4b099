"""The program that owns text: HTTP in, engine lines out. It never imports the engine's computing parts."""
