"""The page that shows pools and claims: read-only, live, and limited to what its reader may list."""
