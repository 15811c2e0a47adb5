"""What is alive: the actor kernel, the segment container and its parts, and the store that wires them."""
