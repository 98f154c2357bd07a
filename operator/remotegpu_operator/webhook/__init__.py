"""The webhook: pods and pod templates that ask for a share are rewritten. `mutate` is pure, `server` is the I/O."""
