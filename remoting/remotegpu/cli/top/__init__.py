"""`remotegpu top`: what appliances or a cluster have and who has it, live in a terminal."""
