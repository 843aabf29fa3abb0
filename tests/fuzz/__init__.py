"""New examples, for as long as one likes: `make fuzz MINUTES=60`.

Every property of the tests with seeds of its own, and studies, fleets, results and command lines
that nobody would write. Each must end in what is right or in one clear error.
"""
