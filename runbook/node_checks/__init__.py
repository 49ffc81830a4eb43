"""Questions that a job asks each of its nodes before it trains.

They need only the standard library, and run before anything imports torch.
"""
