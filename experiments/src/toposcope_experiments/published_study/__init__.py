"""The published study of weights and loss, replayed claim by claim: its rules and its numbers."""
