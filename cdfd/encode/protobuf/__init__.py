"""Records in Protobuf."""
