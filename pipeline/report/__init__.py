"""The auditor's page, the model card and the papers that European law asks for."""
