"""Whether anything is left: memory, descriptors, buffers, objects. `make test-leaks` runs it, `make test` does not."""
