"""Functions from tensors to tensors: each equation as written (`reference`) beside its fast forms."""
