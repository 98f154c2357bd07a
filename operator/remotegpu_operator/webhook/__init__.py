"""The webhook: rewrites pods and pod templates that ask for a share, before the API server stores them.

`rules` defines the requests for which the API server calls the webhook; the chart's configuration is generated from it.
`server` receives a request, `body` reads the request's body with limits, and `mutate` builds the answer with the other
modules. Only `server` and `body` do I/O. The webhook is a separate program, `python -m remotegpu_operator.webhook`. Its
answer depends only on the request: it must not call other processes or use the operator's state.
"""
