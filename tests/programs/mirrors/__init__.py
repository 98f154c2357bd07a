"""What random programs with mirrors are made of: memory, ways to write to it, commands and waits."""
