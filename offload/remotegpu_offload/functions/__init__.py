"""Cut B and C: functions of this program are executed, and instances of its classes live, at the acceptor."""
