"""The sampler on the manager: search space, ask and tell, storage, resident service, client."""
