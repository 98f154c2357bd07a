"""Code paging: the acceptor imports the user's modules from the client, which serves what the configuration allows."""
