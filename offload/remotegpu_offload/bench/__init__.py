"""Programs that `remotegpu offload bench` runs in the user's interpreter: ordinary ones that end with a line of
JSON."""
