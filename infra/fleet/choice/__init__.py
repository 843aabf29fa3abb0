"""Which instances may be had: types, images' needs, prices, quotas, in order of price."""
