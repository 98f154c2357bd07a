"""Communication with appliances: their reports, and the certificates and tokens for mutual authentication.

`inventory` polls each appliance for its report. `authority` stores certificates in Secrets; `certificates` (pure)
decides when to change them. `tokens` has the tokens that the operator sends. Pools, claims and the dashboard use this
package. It creates no appliances: `builders` builds their objects, and pools write them.
"""
