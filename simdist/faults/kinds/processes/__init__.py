"""What happens to the processes of ranks, and to the hosts that they run on."""
