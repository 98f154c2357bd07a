"""`remotegpu top`: GPUs and shares of appliances or of a cluster, live in a terminal."""
