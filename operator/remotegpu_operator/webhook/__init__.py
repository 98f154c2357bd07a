"""The webhook rewrites pods and pod templates that ask for a share. `server` does the I/O, all else is pure."""
