"""The supervisor: which host process serves which container, and what happens when one is lost."""
