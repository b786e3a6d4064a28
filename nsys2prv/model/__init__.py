"""Every object seen becomes a Paraver node, task and thread; every name seen becomes an event value. Small and deterministic."""
