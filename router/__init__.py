"""What one worker owes its clients: synchronous, without I/O, clock or chance."""
