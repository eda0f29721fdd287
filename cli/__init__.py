"""The `baton` command: the one package that may import all others, and does so when a command needs them."""
