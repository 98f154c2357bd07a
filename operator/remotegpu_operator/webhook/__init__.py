"""The webhook: rewrites pods and pod templates that ask for a share, before the API server stores them.

`rules` says for which requests the API server calls it; the chart's configuration is generated from it. `server`
receives a request, `body` reads it within bounds, and `mutate` answers with a patch, by means of the other files. Only
`server` and `body` do I/O. A program of its own, `python -m remotegpu_operator.webhook`. It must not call any other
process or know the operator's state: it has only the request.
"""
