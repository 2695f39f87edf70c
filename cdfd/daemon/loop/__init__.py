"""One table's loop: plans in, deliveries out."""
