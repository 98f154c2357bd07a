"""Program mode: a program runs in the acceptor, with the code, files, terminal, signals and exit code of the client.

`client` is the program's process on the client, `acceptor` runs the program, and `child` prepares Python processes that
it starts. `terminal` and `streams` are the two halves of the standard streams. `main` runs a program as `__main__`,
also for the other modes. `launch` calls the client's half, and `acceptor.session` loads the other. The acceptor
receives only files and variables that the configuration allows.
"""
