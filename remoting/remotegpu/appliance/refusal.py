"""A request that is answered with a sentence instead of what it asked for."""

import grpc


class RefusalError(Exception):
    """The gRPC status code and one line that says the cause and the next step."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
