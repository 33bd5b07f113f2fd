"""What several laws are built from."""
