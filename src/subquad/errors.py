"""The one error that is meant for the user."""


class SubquadError(ValueError):
    """A mistake that the user can mend: one sentence that says what happened and what to do."""
