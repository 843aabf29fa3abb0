"""Why a region, node, job or instance stands where it stands: `trialfleet why`."""
