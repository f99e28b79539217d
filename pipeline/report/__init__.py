"""The auditor's page, the model card and the training content summary."""
