"""What runs cost: the arithmetic, the nodes' time that no job had, and budgets (docs/costs.md)."""
