"""The webhook: pods and pod templates that ask for a share are rewritten. `server` is the I/O, all else is pure."""
