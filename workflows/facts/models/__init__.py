"""The published models in a region's folder, and why one of them is current."""
