"""A law in an engine's place: predictions beside observations, without any engine."""
