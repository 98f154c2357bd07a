"""The page that shows pools and claims: read-only, live, and of what its reader may list."""
