"""Program mode: a program runs in the acceptor; its code, files, terminal, signals and exit code stay the client's."""
