"""The operator: pools become appliances, claims become allocations, and gates are lifted. And the webhook beside it."""
