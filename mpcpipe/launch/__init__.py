"""From a job to its processes: by itself, by hand, by mpirun, torchrun or srun, and each one from start to report."""
