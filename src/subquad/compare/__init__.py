"""From which length on does each attention pay on this machine, in time and in memory?

`cells` builds the work, `plan` orders and measures it, `views` reads the rows, `words` and `advice` say what they mean. The
last three do without PyTorch.
"""
