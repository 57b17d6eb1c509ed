"""Peers: other people's methods on our data. They import optional packages, and only when called."""
