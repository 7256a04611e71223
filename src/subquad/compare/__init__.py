"""From which length on does each attention pay on this machine, in time and in memory?

`cells` builds the work, `plan` orders and measures it, `runs` describes it in run.json, `views` reads the rows, `sentences`
and `advice` say what they mean. `views`, `sentences`, `advice`, `linformer_table` and `replication` do without PyTorch.
"""
