"""A gang is one training over several HTCondor jobs; this is the agent of each of these jobs."""
