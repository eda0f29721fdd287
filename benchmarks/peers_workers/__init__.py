"""Workers of `benchmarks.peers`: programs for other environments, which have no Baton."""
