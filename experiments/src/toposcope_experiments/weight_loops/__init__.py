"""Whether loops of weight matrices fall when a network generalises."""
