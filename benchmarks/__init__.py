"""One file per claim; each measures us, the peer and the floor in one run and prints the ratio."""
