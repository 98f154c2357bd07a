"""The operator: pools become appliances, claims become allocations, and gates are lifted. The webhook is here too."""
