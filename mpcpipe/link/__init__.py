"""Messages between parties: frames, TLS, TCP, MPI, torch.distributed, memory."""
