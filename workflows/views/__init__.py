"""What people and programs see of a run, such as tables, pages and reports."""
