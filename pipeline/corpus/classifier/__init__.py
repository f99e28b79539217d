"""The quality of a text as a number, by a classifier trained on good and bad texts, or a pretrained one."""
