"""All rows, in the order of the page."""

from documented.row import Row
from documented.rows import errors, lifetimes, null, order, synchronous, threads

ROWS: list[Row] = [row for part in (errors, null, lifetimes, order, synchronous, threads) for row in part.TABLE.rows]
