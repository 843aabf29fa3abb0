"""Generated parts of docs/: `make docs-reference` writes them, a unit test checks them."""
