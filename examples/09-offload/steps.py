"""The computations of the program on images; pure numpy."""

import socket

import numpy as np


def describe(images: np.ndarray) -> tuple[np.ndarray, str]:
    """Histograms of gradients in the quarters of each image, and the name of the machine that computed them."""
    down, right = np.gradient(images, axis=(1, 2))
    strength, angle = np.hypot(down, right), np.arctan2(down, right)
    sector = np.floor((angle + np.pi) / (2 * np.pi) * 8).astype(int) % 8
    quarters = []
    for rows in (slice(0, 4), slice(4, 8)):
        for columns in (slice(0, 4), slice(4, 8)):
            weights = strength[:, rows, columns]
            quarters += [np.where(sector[:, rows, columns] == k, weights, 0).sum(axis=(1, 2)) for k in range(8)]
    return np.stack(quarters, axis=1), socket.gethostname()
