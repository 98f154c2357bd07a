"""Program mode: a program runs in the acceptor; its code, files, terminal, signals and exit code stay the client's.

`client` is the program's process here and `acceptor` the one that runs it; `child` prepares Python processes that it
starts. `terminal` and `streams` are the two halves of the standard streams. `main` runs a program as `__main__`, also
for the other modes. Called by `launch`, and loaded by `acceptor.session`. The acceptor gets files and variables only as
the configuration allows.
"""
