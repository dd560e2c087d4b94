DEFAULTS = {
    "colors": {"text": "black", "page": "white"},
    "folders": ["~/notes"],
    "font": {"name": "serif", "size": 11},
}
