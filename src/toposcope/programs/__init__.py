"""What programs ask: the answer on runs as data, and a server for the Model Context Protocol."""
