"""A real Slurm on loopback: munge, slurmdbd on MariaDB, slurmctld, slurmrestd with JWT, slurmds with fake GPUs."""
