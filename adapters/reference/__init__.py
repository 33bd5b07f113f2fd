"""The bundled reference engine: a real forward under the law of another system, or of its own default."""
