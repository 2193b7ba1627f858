"""What happens to simulated disks."""
