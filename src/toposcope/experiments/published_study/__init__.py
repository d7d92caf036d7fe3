"""The published study of weights and loss, replayed claim by claim: its rules, its numbers, and what remains of them."""
