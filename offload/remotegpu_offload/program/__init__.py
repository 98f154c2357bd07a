"""Program mode: a whole program runs in the acceptor; its code, files, terminal, signals and exit code stay the client's."""
