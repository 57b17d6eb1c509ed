"""The paper's experiments, each as one command: grids of cells that survive interruption, and their summaries."""
