"""The processes of a training: started, joined, supervised."""
