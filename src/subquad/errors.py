"""The errors that are meant for the user."""


class SubquadError(ValueError):
    """A mistake that the user can mend: one sentence that says what happened and what to do."""


class NotFiniteError(SubquadError):
    """Tensors that were given to a mechanism hold NaN or infinite numbers."""


class DivergedError(SubquadError):
    """A training whose loss became NaN or infinite."""


class OptionError(SubquadError):
    """A value that an option does not take. The command line shows the option as it is typed there."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name, self.problem = name, problem
