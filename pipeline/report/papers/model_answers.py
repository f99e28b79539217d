"""Answer the points of the papers on models: each answer once, from records or from the provider, in one language."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pipeline import layout
from pipeline.core.markup import size
from pipeline.energy.energy_accounting import EnergyUnit, Figure
from pipeline.report.papers.facts import ModelFacts, SourceFacts
from pipeline.report.papers.paper import Answer, Table
from pipeline.report.run_reader import Json
from pipeline.report.settings import Stated
from pipeline.report.translator import Translator

MANIFESTS = layout.MANIFEST.pattern()
THRESHOLD = 1e23  # floating-point operations: the Commission's indicative mark of a general-purpose model
MEGAWATT_HOUR = EnergyUnit("MWh", 3.6e9)
SIGNIFICANT = 2  # digits of an energy, which the Model Documentation Form asks for
PARAMETER_BANDS = (
    *((5 * 10**8, "1 to 500 million"), (5 * 10**9, "500 million to 5 billion"), (15 * 10**9, "5 to 15 billion")),
    *((50 * 10**9, "15 to 50 billion"), (100 * 10**9, "50 to 100 billion"), (500 * 10**9, "100 to 500 billion")),
    (10**12, "500 billion to 1 trillion"),
)
LARGEST_PARAMETER_BAND = "more than 1 trillion"


class ModelAnswers:
    """The answers on the models of one run in one language.

    Args:
        page: what the report's page shows, as `view.context` returns it.
    """

    def __init__(
        self, page: Json, stated: Stated, sources: list[SourceFacts], models: list[ModelFacts], words: Translator
    ) -> None:
        self.page, self.stated, self.sources, self.models, self.words = page, stated, sources, models, words

    def asked(self, name: str) -> Answer:
        """What only the provider can tell."""
        text = self.stated.text(name, self.words.language)
        return Answer(text if text != "" else self.words("none"), key=self.stated.keys[name])

    def of_models(self, told: Callable[[ModelFacts], str], *origin: str) -> Answer:
        """One sentence for each model."""
        lines = [f"{model.name}: {told(model)}" for model in self.models]
        origin = origin or tuple(model.records for model in self.models)
        return Answer("; ".join(lines) or self.words("no model was trained"), origin)

    def names(self) -> Answer:
        """Every model by its name in the run, and its parameters."""
        w, run = self.words, self.page["settings"].run
        return self.of_models(
            lambda m: w("{run}/{name}, {number} parameters", run=run, name=m.name, number=w.number(m.parameters))
        )

    def dependence(self) -> Answer:
        """Whether a model began at another one, or at random weights."""
        w = self.words

        def told(model: ModelFacts) -> str:
            if taken := model.began_with:
                sentence = w(
                    "on {model}, licence {license}: training began at its weights",
                    model=taken["name"],
                    license=taken["license"],
                )
                return f"{sentence} ({taken['url']})" if taken["url"] else sentence
            if model.seed is None:
                return w("on no other model; training began at random weights")
            return w("on no other model; training began at random weights, of the seed {seed}", seed=model.seed)

        return self.of_models(told)

    def architecture(self) -> Answer:
        """Shape of every model."""
        w = self.words

        def told(model: ModelFacts) -> str:
            shape = model.architecture
            return w(
                "decoder of the kind {preset}, {layers} layers of width {width}, {heads} attention heads of which "
                "{key_value_heads} for keys and values, a vocabulary of {vocabulary} tokens",
                preset=shape.get("preset") or "–",
                layers=shape.get("layers") or "–",
                width=w.number(shape.get("width")),
                heads=shape.get("heads") or "–",
                key_value_heads=shape.get("key_value_heads") or shape.get("heads") or "–",
                vocabulary=w.number(model.vocabulary_size),
            )

        return self.of_models(told)

    def parameters(self) -> Answer:
        """Exact number of parameters, and the band of the form."""
        w = self.words

        def told(model: ModelFacts) -> str:
            band = next((text for limit, text in PARAMETER_BANDS if model.parameters < limit), LARGEST_PARAMETER_BAND)
            told = w("{number} parameters ({band})", number=w.number(model.parameters), band=w(band))
            if model.active_parameters == model.parameters:
                return told
            return told + w(", of which one token uses {number}", number=w.number(model.active_parameters))

        return self.of_models(told)

    def modality(self) -> Answer:
        """What goes in and comes out, and how much at most."""
        w = self.words
        return self.of_models(
            lambda m: w(
                "text in and text out, of the characters of UTF-8; trained on sequences of {length} tokens",
                length=w.number(m.training.get("sequence_length")),
            )
        )

    def files(self) -> Answer:
        """What is delivered, and which software loads it."""
        w = self.words
        folders = tuple(f"{layout.FINAL_MODEL.name(model=model.name)}/" for model in self.models)
        return self.of_models(
            lambda m: w(
                "weights as safetensors, configuration and tokenizer in models/{name}/final, which Transformers loads "
                "with AutoModelForCausalLM and AutoTokenizer",
                name=m.name,
            ),
            *folders,
        )

    def hardware(self) -> Answer:
        """What the weights alone need of memory; computed from the parameters."""
        w = self.words
        return self.of_models(
            lambda m: w(
                "memory for the weights alone, computed: {full} in 32 bits, {half} in 16 bits",
                full=w.figure(size(4 * m.parameters)),
                half=w.figure(size(2 * m.parameters)),
            )
        )

    def authenticity(self) -> Answer:
        """How a reader knows that weights are those that the run made."""
        w = self.words
        return self.of_models(
            lambda m: w("the crate has the sha256 of every file of models/{name}/final", name=m.name),
            layout.CRATE,
        )

    def text_only(self) -> Answer:
        """The only modality that this pipeline reads."""
        return Answer(self.words("text"), (MANIFESTS,))

    def design(self) -> Answer:
        """What the training optimises, and how."""
        w = self.words

        def told(model: ModelFacts) -> str:
            t, base_width = model.training, model.architecture.get("base_width")
            learned = w(
                "trained to predict the next token (cross-entropy) with {optimizer}: learning rate {rate}, schedule "
                "{schedule}, {steps} steps of {batch} sequences, precision {precision}, {backend} {strategy}; no step "
                "trains it to follow instructions",
                optimizer=w("Muon for the matrices of the blocks and AdamW for the rest")
                if t.get("optimizer") == "muon"
                else "AdamW",
                rate=w.number(t.get("learning_rate")),
                schedule=t.get("schedule", "–"),
                steps=w.number(t.get("steps")),
                batch=w.number(t.get("batch_size")),
                precision=t.get("precision", "–"),
                backend=t.get("backend", "–"),
                strategy=t.get("strategy", "–"),
            )
            slower = w(
                "the rate is that of width {base}, which matrices of this one divide by {width} / {base}, by maximal "
                "update parametrisation (Yang et al. 2022)",
                base=w.number(base_width),
                width=w.number(model.architecture.get("width")),
            )
            pulled = w("the gradients hold a z-loss of weight {weight}", weight=w.number(t.get("z_loss")))
            ramped = w(
                "the first {steps} steps have batches or sequences of other sizes",
                steps=w.number(max((stage["to_step"] for stage in t.get("ramp", [])), default=0)),
            )
            balance = t.get("load_balancing_loss")
            balanced = w("the gradients hold a load-balancing loss of weight {weight}", weight=w.number(balance))
            added = ((slower, base_width), (pulled, t.get("z_loss")), (balanced, balance), (ramped, t.get("ramp")))
            told = [learned, *(sentence for sentence, is_so in added if is_so)]
            return "; ".join(told)

        return self.of_models(told)

    def settings(self, title: str) -> list[Table]:
        """All settings of each model as its records have them."""
        w = self.words
        return [
            Table(
                f"{title}: {model['name']}",
                (w("Setting"), w("Value")),
                tuple((name, "–" if value is None else str(value)) for name, value in model["settings"]),
                (layout.SEGMENT_RECORD.pattern(model=model["name"]),),
            )
            for model in self.page["models"]
        ]

    def compute(self) -> Answer:
        """Operations that were spent, by both conventions, against the indicative mark."""
        w = self.words

        def told(model: ModelFacts) -> str:
            small, large = (w.figure(f"{model.flops(factor):.2e}") for factor in (6, 8))
            return w(
                "{small} floating-point operations by 6ND and {large} by 8ND (N parameters, D tokens read, activations "
                "computed once or twice), {share} of 10^23 by 6ND; {tokens} tokens",
                small=small,
                large=large,
                share=w.figure(f"{model.flops(6) / THRESHOLD:.2e}"),
                tokens=w.number(model.tokens),
            ) + (self._before(model) if model.branch_of is None else "")

        return self.of_models(told)

    def compute_method(self) -> Answer:
        """How operations are counted: by formula, from exact counts."""
        w = self.words
        text = w(
            "product of the parameters and the tokens that were read, both counted; steps done again are not in it"
        )
        return Answer(text, tuple(model.records for model in self.models))

    def time(self) -> Answer:
        """When and how long was trained, on what, and what was lost on the way."""
        w = self.words

        def told(model: ModelFacts) -> str:
            return w(
                "{began} to {ended} (UTC), {duration} of jobs whose results stand, on {hardware}; {lost} attempts "
                "whose result was lost",
                began=f"{model.started:%Y-%m-%d %H:%M}",
                ended=f"{model.ended:%Y-%m-%d %H:%M}",
                duration=str(timedelta(seconds=round(model.seconds))),
                hardware=" + ".join(model.hardware),
                lost=model.lost_attempts,
            ) + self._before(model)

        return self.of_models(told, *(model.records for model in self.models), f"{layout.ATTEMPTS}/")

    def _before(self, model: ModelFacts) -> str:
        """Return where time and energy begin of a model that goes on from another one; nothing of any other."""
        if model.branch_of is None:
            if taken := model.began_with:
                return f" ({self.words('without what {model} took before', model=taken['name'])})"
            return ""
        base, step = model.branch_of
        told = self.words("from step {step} of {model} on, where what came before is told", step=step, model=base)
        return f" ({told})"

    def _megawatt_hours(self, figure: Figure) -> str:
        w = self.words
        if not figure.is_known:
            return w("not measured")
        value, low, high = (
            w.number(joules / MEGAWATT_HOUR.size, SIGNIFICANT)
            for joules in (figure.joules, figure.low_joules, figure.high_joules)
        )
        return w(
            "{value} MWh (95 % interval {low} to {high}; {label})",
            value=value,
            low=low,
            high=high,
            label=w.figure(figure.label),
        )

    def energy(self) -> Answer:
        """Electricity of the training of each model, and of all that the run took."""
        w = self.words
        models = [f"{one.name}: {self._megawatt_hours(one.energy)}{self._before(one)}" for one in self.models]
        total: Figure = self.page["energy"].total
        whole = w("the whole run, lost attempts and idle nodes included: {energy}", energy=self._megawatt_hours(total))
        return Answer("; ".join([*models, whole]), (layout.ENERGY_ACCOUNT,))

    def energy_method(self) -> Answer:
        """By which meters the electricity is known."""
        meters = sorted({meter for meter in self.page["energy"].total.meters})
        text = "; ".join(meters) if meters else self.words("no meter was read")
        return Answer(text, (layout.ENERGY_ACCOUNT, f"{layout.READINGS}/"))
