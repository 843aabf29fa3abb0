"""The loader of a published model for MLflow. `pyfunc_files.py` copies it to each model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

PREDICT = "predict.py"  # a trainer's own file that loads its model


def _load_pyfunc(folder: str) -> Any:
    """Return the model in a folder, as an object with a method `predict(rows)`."""
    own = Path(folder) / PREDICT
    return _load_own(own) if own.exists() else _Tabular(Path(folder))


def _load_own(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("predict", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(file.parent)


class _Tabular:
    def __init__(self, folder: Path) -> None:
        from trialfleet.nodes.tabular.predict import load_model

        self._model = load_model(folder)

    def predict(self, rows: pd.DataFrame) -> pd.Series[Any]:
        import pandas as pd
        import polars as pl

        from trialfleet.workflows.control.models.prediction_file import predict_frame

        columns = self._model.columns
        needed = [name for name in columns.needed_columns if name in rows.columns]
        frame = pl.DataFrame([_column(name, rows[name]) for name in needed])
        predicted = predict_frame(self._model, frame)
        return pd.Series(predicted, index=rows.index, name=f"predicted_{columns.target}")


def _column(name: str, values: pd.Series[Any]) -> pl.Series:
    """Return a pandas column as a polars column. Missing values of any kind become null."""
    import polars as pl

    missing = values.isna().to_list()
    cells = [None if gone else cell for cell, gone in zip(values.to_list(), missing, strict=True)]
    return pl.Series(name, cells, strict=False)
