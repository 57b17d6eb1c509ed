"""A traced function of many particles as one program of vectors along the particles, for a kernel that loops over time."""
