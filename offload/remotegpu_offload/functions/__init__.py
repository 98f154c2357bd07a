"""Function and module mode: functions of this program run, and instances of its classes live, at the acceptor."""
