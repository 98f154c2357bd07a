"""The parts of random programs with mirrors: memory, ways to write to it, commands and waits."""
