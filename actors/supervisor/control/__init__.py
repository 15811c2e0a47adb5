"""What the supervisor and its hosts say to each other."""
