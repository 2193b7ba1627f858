"""ProcessGroupNCCL's threads and reports: watchdog, heartbeat monitor, flight recorder, the ends of processes."""
