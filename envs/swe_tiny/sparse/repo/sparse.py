"""Matrices that store only what is not 0."""


class Sparse:
    def __init__(self, rows, columns, cells=None):
        self.rows = rows
        self.columns = columns
        self.cells = {}
        for (i, j), value in (cells or {}).items():
            self._check(i, j)
            if value != 0:
                self.cells[i, j] = value

    def _check(self, i, j):
        if not (0 <= i < self.rows and 0 <= j < self.columns):
            raise IndexError(f"({i}, {j}) is outside {self.rows} x {self.columns}")

    def __getitem__(self, at):
        self._check(*at)
        return self.cells.get(at, 0)

    def __eq__(self, other):
        same_shape = (self.rows, self.columns) == (other.rows, other.columns)
        return same_shape and self.cells == other.cells

    def __add__(self, other):
        if (self.rows, self.columns) != (other.rows, other.columns):
            raise ValueError("shapes differ")
        out = Sparse(self.rows, self.columns, self.cells)
        for at, value in other.cells.items():
            out.cells[at] = out.cells.get(at, 0) + value
        return out

    def __matmul__(self, other):
        if self.columns != other.rows:
            raise ValueError("inner sizes differ")
        out = Sparse(self.rows, other.columns)
        for (i, k), left in self.cells.items():
            for j in range(other.columns):
                right = other.cells.get((k, j), 0)
                if right != 0:
                    out.cells[i, j] = out.cells.get((i, j), 0) + left * right
        return out

    def transpose(self):
        return Sparse(self.columns, self.rows, {(j, i): v for (i, j), v in self.cells.items()})
