"""What a completion must be: constraints, their compilation, and which tokens they allow next."""
