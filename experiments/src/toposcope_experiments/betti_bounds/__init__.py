"""How many basins an architecture allows: the bound, the formats of networks, and the section."""
