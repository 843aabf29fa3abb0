"""Facts about the published models of a region, and about which of them is current."""
