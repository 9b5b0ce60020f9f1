"""docs/capacity.md from figures."""
def page(figures: dict[str, float], connections: int, others: int, payload: int) -> str:
    """Return the page."""
    return repr(figures)
