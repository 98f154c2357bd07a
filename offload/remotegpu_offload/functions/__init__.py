"""Function and module mode: functions of this program run in the acceptor, and instances of its classes exist there.

`client` replaces functions and classes by stubs, `acceptor` makes the calls, and `link` sends them in both directions.
`plan` applies a rule to a function's signature, `classes` and `proxies` represent objects of the other end, and
`mutation` transfers changes of arguments back. `profiles` holds the rules for known libraries. `importing` calls this
package when a module of a rule is imported. `objects` writes and reads the values; the client must not unpickle
anything by other means.
"""
