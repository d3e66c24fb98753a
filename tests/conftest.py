from hypothesis import settings

# No time limit per example: the machine may be busy. Derandomised: a test suite gives one answer for one
# state of the code.
settings.register_profile("book", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("book")
