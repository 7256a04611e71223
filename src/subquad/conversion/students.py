"""Makes the models of a recipe from the original."""

from collections.abc import Collection
from copy import deepcopy

from torch import nn

from subquad.conversion.convertible import Convertible
from subquad.conversion.recipes import Recipe
from subquad.types import AttentionOptions


def by_layer(attention: AttentionOptions | None, layers: int, exact: Collection[int]) -> list[AttentionOptions | None]:
    """Returns the new mechanism of each layer; None for layers that keep their exact attention."""
    if attention is None:
        return [None] * layers
    chosen = attention.for_layers(layers)
    return [None if layer in exact or options.traits.exact else options for layer, options in enumerate(chosen)]


class Students:
    """Copies of the original with other mechanisms."""

    def __init__(self, original: Convertible, seed: int) -> None:
        self.original, self.seed = original, seed
        self.layers = len(original.origins)

    def attention(self, recipe: Recipe, exact: Collection[int]) -> list[AttentionOptions | None]:
        """Returns the mechanism of each layer; None for the layers in `exact`, and for those that are to have softmax."""
        return by_layer(recipe.attention, self.layers, exact)

    def converted(self, recipe: Recipe, exact: Collection[int]) -> list[int]:
        """Returns the layers whose attention is replaced."""
        return [layer for layer, options in enumerate(self.attention(recipe, exact)) if options is not None]

    def fresh(self, recipe: Recipe, exact: Collection[int]) -> nn.Module:
        """Returns an untrained student.

        Its embeddings are frozen: their gradients would be as large as the vocabulary.
        """
        model = self.original.student(self.attention(recipe, exact), self.seed)
        for parameter in self.original.embeddings(model):
            parameter.requires_grad_(False)
        return model

    def give_back(self, student: nn.Module, recipe: Recipe, exact: Collection[int]) -> nn.Module:
        """Returns a student with exact attention in the layers `exact`; the other mechanisms keep their parameters."""
        model = self.fresh(recipe, exact)
        learned = self.original.mechanisms(student)
        for layer, attend in enumerate(self.original.mechanisms(model)):
            if layer not in exact:
                attend.load_state_dict(learned[layer].state_dict())
        return model

    def copy(self, model: nn.Module) -> nn.Module:
        """Returns a copy that shares only the embeddings, which are never changed."""
        return deepcopy(model, {id(parameter): parameter for parameter in self.original.embeddings(model)})
