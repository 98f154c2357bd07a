"""Function and module mode: functions of this program are executed, and instances of its classes live, at the acceptor."""
