"""The agent of each job of a gang, which is one training over several HTCondor jobs."""
