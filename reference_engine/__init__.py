"""The bundled reference engine: laws (numpy) and a small real engine (torch) whose cache managers are those laws."""
