"""`remotegpu bench`: a share measured against raw TCP, in several configurations."""
