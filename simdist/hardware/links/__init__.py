"""The network of a real run with faults on it: namespaces, a switch in user space, a way to the store."""
