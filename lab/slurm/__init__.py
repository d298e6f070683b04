"""A real Slurm on loopback: munge, slurmdbd on MariaDB, slurmctld, slurmrestd with JWT, and many slurmd with fake GPUs."""
