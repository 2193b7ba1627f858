"""Silent faults, and faults of devices: values that change, and devices that break or compute wrongly."""
