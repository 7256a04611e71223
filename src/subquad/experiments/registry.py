"""All experiments, by the name that `subquad reproduce` takes."""

from subquad.experiments.base import Experiment
from subquad.experiments.conversion.experiment import ConversionExperiment
from subquad.experiments.copy.experiment import CopyExperiment
from subquad.experiments.events.experiment import EventsExperiment
from subquad.experiments.images.experiment import ImagesExperiment
from subquad.experiments.infinity.experiment import InfinityExperiment
from subquad.experiments.linformer.experiment import LinformerExperiment
from subquad.experiments.speech.experiment import SpeechExperiment
from subquad.experiments.transactions.experiment import TransactionsExperiment

EXPERIMENTS: dict[str, Experiment] = {
    "copy": CopyExperiment(),
    "infinity": InfinityExperiment(),
    "transactions": TransactionsExperiment(),
    "events": EventsExperiment(),
    "linformer": LinformerExperiment(),
    "conversion": ConversionExperiment(),
    "images": ImagesExperiment(),
    "speech": SpeechExperiment(),
}
