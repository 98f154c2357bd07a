"""Commands about an appliance: starting and preparing one, draining it, and suspending or moving what runs on it."""
