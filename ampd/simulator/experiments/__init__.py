"""The paper's experiments: targets, deployments, bounds, goodput and the grid of `make paper`."""
