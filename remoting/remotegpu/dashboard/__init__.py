"""The page that shows GPUs and their holders: its files, its protection, and its data for one appliance."""
