"""Commands about a cluster: its claims and appliances, the reasons why claims wait, and usage.

`objects` calls the API server with the user's own permissions; `top` and `doctor` use it, too. `cli.app` and
`cli.kubectl` call this package. Only `why` uses the operator's package, which it finds as an extension.
"""
