"""A fleet in HTCondor: nodes in the pool, jobs that wait for nodes, the autoscaler in a DAG."""
