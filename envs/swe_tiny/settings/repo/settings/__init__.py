from settings.load import load
