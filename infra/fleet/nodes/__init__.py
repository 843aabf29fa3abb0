"""The inputs of an instance's boot: user data, the bundle of `nodes/`, its configuration."""
