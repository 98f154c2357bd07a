"""One of the modules."""

from . import five, four, six

VALUE = four.VALUE + five.VALUE + six.VALUE
