"""Events of the daemon for other systems: traces for OpenTelemetry, run events for OpenLineage. Off unless configured."""
