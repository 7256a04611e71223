"""Is an attention, or a whole model, what it says it is?

`importing` and `building` make what a name stands for, `outside` describes how it is called, `guessing` finds that out,
`subjects` and `models` put it behind one interface, `properties`, `precision` and `growth` ask, `reproducers` writes two
lines that show a failure, `processes` keeps crashes away, and `suite` asks everything.
"""
