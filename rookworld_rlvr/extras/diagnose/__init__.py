"""One optimiser step of the real trainer on a fixed seed, taken apart in ten phases."""
