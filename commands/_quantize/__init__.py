"""What `aril quantize` is made of: the choices, the tools in environments of their own, the job, and its model card."""
