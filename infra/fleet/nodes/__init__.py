"""What an EC2 instance gets for its boot: user data, HTCondor's configuration, and the bundle."""
