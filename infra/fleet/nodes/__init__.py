"""The boot files of an EC2 instance: user data, HTCondor's configuration, and the bundle."""
