"""Commands about a cluster: its claims, its appliances, waiting claims and why they wait, and usage.

`objects` reads the API server with the user's own rights; `top` and `doctor` use it, too. Called by `cli.app` and
`cli.kubectl`. Only `why` uses the operator's package, which it finds as an extension.
"""
