"""Models: what they are, where they lie, how they are read and computed."""
