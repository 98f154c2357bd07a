"""Names, quantities and typed objects that every part shares.

`names` and `kubernetes` have every name that two parts must spell alike. `claims`, `pools` and `pods` are Kubernetes
objects with types, and `quantities`, `durations` and `addresses` parse what people write. `usage` and `accounts` are
the records of usage and their sums, `reservations` is a rule of both allocators. Imported by all Python parts. Pure: no
I/O, no clock. It must not import anything of ours.
"""
