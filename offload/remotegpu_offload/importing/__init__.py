"""Arming: what a configuration names is wrapped when it is imported; nothing is imported for that."""
