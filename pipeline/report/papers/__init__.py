"""The papers that European law asks for, in English and in Dutch: `write` fills the forms with `computed_answers`."""
