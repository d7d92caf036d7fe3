"""Whether the topology of attention maps says more of induction heads than entropy and distance of attention do."""
