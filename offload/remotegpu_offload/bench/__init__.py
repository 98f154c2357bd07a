"""What `remotegpu offload bench` runs in the user's interpreter: ordinary programs that end with a line of JSON."""
