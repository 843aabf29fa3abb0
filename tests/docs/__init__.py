"""What of docs/ is made from code: `make docs-reference` writes it anew, a unit test checks it."""
