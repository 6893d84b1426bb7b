"""What bench/gpu_check.sh measures, one file for each part; every part runs in a process of its own."""
