"""Names, quantities and typed objects that every part shares.

`names` and `kubernetes` have every name that two parts must spell alike. `claims`, `pools` and `pods` are Kubernetes
objects with types, and `quantities`, `durations` and `addresses` parse text that people write. `usage` has the usage
records and `accounts` their sums. `reservations` is a rule that both allocators follow. All Python parts import this
package. It is pure: no I/O and no clock. It must not import any other package of this project.
"""
