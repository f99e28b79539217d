"""Sphinx's configuration of the documentation; `make docs` builds it."""

project = "Polder"
author = "The authors of Polder"
copyright = "The authors of Polder, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"
html_theme = "furo"
html_title = "Polder"
html_static_path = ["_static"]
html_css_files = ["polder.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5d5a", "color-brand-content": "#0b5d5a"},
    "dark_css_variables": {"color-brand-primary": "#6cc5bf", "color-brand-content": "#6cc5bf"},
}
