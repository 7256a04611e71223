"""Functions from tensors to tensors: each equation as written (`reference`) and its fast forms."""
