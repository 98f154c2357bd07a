"""Touches CUDA and prints the first code that is not success, or 0."""

from cu import CudaError, start

try:
    start()
    print(0)
except CudaError as error:
    print(error.code)
