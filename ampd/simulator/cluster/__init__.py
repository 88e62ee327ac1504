"""What is simulated: Coordinators, workers, links and the sessions that they serve."""
