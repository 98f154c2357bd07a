"""Function and module mode: functions of this program run, and instances of its classes live, at the acceptor.

`client` replaces functions and classes by stubs, `acceptor` makes the calls, and `link` carries them both ways. `plan`
applies a rule to a function's signature, `classes` and `proxies` stand for objects of the other end, and `mutation`
brings changes of arguments back. `profiles` are the rules for known libraries. Called by `importing` when a module of a
rule is imported. `objects` writes and reads the values; the client must not unpickle anything by other means.
"""
