"""The page that shows GPUs and who has them: its files, what makes it safe, and what it shows of one appliance."""
