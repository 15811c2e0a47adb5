"""The storage writer: moves durable bytes from the log to long-term storage, in flush cycles."""
