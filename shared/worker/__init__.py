"""What both services run steps with: sequences, the block ledger, and the step loop on its own thread."""
