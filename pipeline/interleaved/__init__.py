"""Documents of text and images in the order of their web page, after OBELICS."""
