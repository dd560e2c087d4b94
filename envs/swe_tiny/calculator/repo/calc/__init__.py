from calc.evaluate import evaluate
