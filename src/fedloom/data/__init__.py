"""Where the examples come from, and which client gets which."""
