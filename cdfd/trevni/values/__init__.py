"""Values of a block: their lengths, types and bytes."""
