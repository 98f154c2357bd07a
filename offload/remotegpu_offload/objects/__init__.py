"""Values between the two ends: pickles whose large buffers are pages, and handles to what stays where it is."""
