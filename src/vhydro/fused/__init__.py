"""A traced step of many particles as one kernel that loops over time, with all particles in registers."""
