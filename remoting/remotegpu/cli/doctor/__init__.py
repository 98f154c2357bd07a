"""`remotegpu doctor`: numbered checks of this installation, of appliances and of a cluster."""
