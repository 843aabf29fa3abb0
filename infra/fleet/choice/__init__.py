"""The choice of instance types, AWS regions and zones, by price, quota and interruptions."""
