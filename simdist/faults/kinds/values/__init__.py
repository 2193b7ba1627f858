"""What goes wrong in silence, or in a device: values that change, and devices that break or compute wrongly."""
