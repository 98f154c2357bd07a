"""The far side of the offload: an interpreter that starts empty and runs what one client pages into it."""
