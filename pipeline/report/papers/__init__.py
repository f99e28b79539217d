"""The papers that European law asks for, as data: JSON, HTML and Markdown, in English and in Dutch."""
