"""File paging: programs in the acceptor open the client's files by their paths, where the configuration allows it."""
