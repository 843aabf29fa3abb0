"""What an instance is started with: user data, the bundle of `nodes/`, its configuration."""
