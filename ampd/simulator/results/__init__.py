"""What came out of a simulation: attainment, intervals, tables' rows, figures, timelines."""
