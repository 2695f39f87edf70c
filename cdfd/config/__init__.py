"""Configuration: a YAML file and the environment to frozen settings. The only reader of the environment."""
