"""Making room: leases and MIG instances that move so that a larger block fits. Pure."""
