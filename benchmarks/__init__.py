"""What can be measured again: each module is a command, `python -m benchmarks.<name> --help`."""
