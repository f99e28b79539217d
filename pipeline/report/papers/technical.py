"""The technical documentation of a general-purpose model: Annex XI, section 1, and the Model Documentation Form."""

from __future__ import annotations

from pipeline.report.papers.answers import Answers
from pipeline.report.papers.facts import SourceFacts
from pipeline.report.papers.paper import Paper, Section, Table, section

ANNEX, FORM = "technical-documentation", "model-documentation-form"


def _data_tables(a: Answers, sources: list[SourceFacts]) -> list[Table]:
    w = a.words
    return [
        a.source_table(w("Sources of the texts"), sources),
        a.removed("removed_for_reservation", w("Documents removed for a reservation, an opt-out or a licence")),
        a.removed("removed_as_harmful", w("Documents removed as harmful")),
    ]


def annex(a: Answers, run: str) -> Paper:
    """Return the technical documentation in the order of Annex XI, section 1, of Regulation (EU) 2024/1689."""
    w = a.words
    general = section(
        "1",
        w("General description"),
        [
            (w("Tasks that the model is intended to perform"), a.asked("intended_use")),
            (w("Systems into which it can be integrated"), a.asked("systems")),
            (w("Acceptable use policy"), a.asked("acceptable_use")),
            (w("Date of release"), a.asked("released")),
            (w("Methods of distribution"), a.asked("distribution")),
            (w("Architecture"), a.architecture()),
            (w("Number of parameters"), a.parameters()),
            (w("Modality and format of inputs and outputs"), a.modality()),
            (w("Licence of the weights"), a.asked("model_license")),
        ],
    )
    development = section(
        "2",
        w("Elements of the model and its development"),
        [
            (w("Technical means of integration, stated by the provider"), a.asked("integration")),
            (w("Files and software"), a.files()),
            (w("Design of the training and what it optimises"), a.design()),
            (w("Rationale of the choices"), a.asked("design_rationale")),
            (w("Type and provenance of the data"), a.data_kinds()),
            (w("How the data were obtained and selected"), a.asked("data_selection")),
            (w("Number of data points"), a.amount()),
            (w("Scope: languages"), a.languages()),
            (w("Curation: what was removed"), a.curation()),
            (w("Personal data replaced"), a.personal_data()),
            (w("Measures against unsuitable sources"), a.asked("illegal_content")),
            (w("Methods to detect biases"), a.asked("bias_measures")),
            (w("Data for testing"), a.tests()),
            (w("Computational resources"), a.compute()),
            (w("Training time"), a.time()),
            (w("Energy consumption"), a.energy()),
            (w("How the energy is known"), a.energy_method()),
        ],
        *_data_tables(a, a.sources),
        *a.settings(w("Settings of the training")),
    )
    law = w("Regulation (EU) 2024/1689, Article 53(1)(a) and Annex XI, section 1")
    return Paper(ANNEX, w.language, w("Technical documentation of {run}", run=run), law, (general, development))


def form(a: Answers, run: str) -> Paper:
    """Return the Model Documentation Form of the Code of Practice for General-Purpose AI, chapter Transparency."""
    w = a.words
    parts: list[Section] = [
        section(
            "1",
            w("General information"),
            [
                (w("Legal name of the provider"), a.asked("provider")),
                (w("Contact"), a.asked("contact")),
                (w("Models"), a.names()),
                (w("Authenticity: how to check the files"), a.authenticity()),
                (w("Date of release"), a.asked("released")),
                (w("Date of placing on the Union market"), a.asked("placed_on_market")),
                (w("Depends on another model"), a.dependence()),
            ],
        ),
        section(
            "2",
            w("Properties of the model"),
            [
                (w("Architecture"), a.architecture()),
                (w("Design specifications"), a.design()),
                (w("Modality and format of inputs and outputs"), a.modality()),
                (w("Number of parameters"), a.parameters()),
            ],
        ),
        section(
            "3",
            w("Distribution and licences"),
            [
                (w("Methods of distribution"), a.asked("distribution")),
                (w("Licence of the weights"), a.asked("model_license")),
                (w("Files and software"), a.files()),
            ],
        ),
        section(
            "4",
            w("Use"),
            [
                (w("Acceptable use policy"), a.asked("acceptable_use")),
                (w("Tasks that the model is intended to perform"), a.asked("intended_use")),
                (w("Systems into which it can be integrated"), a.asked("systems")),
                (w("Technical means of integration, stated by the provider"), a.asked("integration")),
                (w("Hardware that is required"), a.hardware()),
            ],
        ),
        section(
            "5",
            w("Training process"),
            [
                (w("Design of the training and what it optimises"), a.design()),
                (w("Rationale of the choices"), a.asked("design_rationale")),
            ],
            *a.settings(w("Settings of the training")),
        ),
        section(
            "6",
            w("Data for training, testing and validation"),
            [
                (w("Modality"), a.text_only()),
                (w("Type and provenance of the data"), a.data_kinds()),
                (w("How the data were obtained and selected"), a.asked("data_selection")),
                (w("Number of data points"), a.amount()),
                (w("Scope: languages"), a.languages()),
                (w("Scope: kinds of text"), a.asked("content_types")),
                (w("Curation: what was removed"), a.curation()),
                (w("Measures against unsuitable sources"), a.asked("illegal_content")),
                (w("Measures on reservations of rights"), a.asked("reservations")),
                (w("Methods to detect biases"), a.asked("bias_measures")),
                (w("Data for testing"), a.tests()),
            ],
            *_data_tables(a, a.sources),
        ),
        section(
            "7",
            w("Computational resources in training"),
            [
                (w("Training time"), a.time()),
                (w("Amount of computation"), a.compute()),
                (w("How the computation is known"), a.compute_method()),
            ],
        ),
        section(
            "8",
            w("Energy consumption"),
            [
                (w("Energy of training"), a.energy()),
                (w("How the energy is known"), a.energy_method()),
                (w("Energy of inference"), a.asked("inference_energy")),
            ],
        ),
    ]
    law = w("Code of Practice for General-Purpose AI, Transparency, Measure 1.1")
    return Paper(FORM, w.language, w("Model Documentation Form of {run}", run=run), law, tuple(parts))
