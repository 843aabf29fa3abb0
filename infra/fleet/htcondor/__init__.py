"""A fleet in HTCondor: its nodes in the pool, the jobs that wait for them, its place in a DAG."""
