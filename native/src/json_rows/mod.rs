//! Rows out of columns: JSON objects, arrays and lines, and records of Avro and Protobuf. Each value is written where it stands, without bytes
//! of its own before.

mod binary;
pub mod numbers;
mod rows;
mod strings;
mod times;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::room::Texts;
use binary::Length;
use rows::{Cells, Column, Piece, Rows};

const MOST_PIECES: usize = 4;

/// Which texts are a piece of the cells, as Python says it.
enum Indices<'py> {
    Same(usize),
    OfRow(PyReadonlyArray1<'py, i64>),
}

impl<'py> FromPyObject<'_, 'py> for Indices<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // Trying both, as a derived form does, would make an exception for each array.
        match object.cast::<PyArray1<i64>>() {
            Ok(array) => Ok(Indices::OfRow(array.try_readonly()?)),
            Err(_) => Ok(Indices::Same(object.extract()?)),
        }
    }
}

/// The values of a column.
enum Values<'py> {
    Bytes(PyReadonlyArray1<'py, u8>),
    Integers(PyReadonlyArray1<'py, i64>),
    Unsigned(PyReadonlyArray1<'py, u64>),
    Doubles(PyReadonlyArray1<'py, f64>),
    /// Those of the columns of rows.
    Rows(Vec<Values<'py>>),
}

/// The columns of rows, and what stands between them.
type Nested<'py> = (Vec<PyBackedBytes>, Vec<Parts<'py>>);

/// A column, as Python says it: `Cells` in the stub.
#[derive(FromPyObject)]
struct Parts<'py>(
    u8,
    Bound<'py, PyAny>,
    Option<PyReadonlyArray1<'py, i64>>,
    Option<PyReadonlyArray1<'py, u8>>,
    (PyBackedBytes, PyBackedBytes, PyBackedBytes),
    usize,
    Vec<Indices<'py>>,
    Option<Nested<'py>>,
);

impl<'py> Parts<'py> {
    fn values(&self) -> PyResult<Values<'py>> {
        let values = &self.1;
        Ok(match self.0 {
            0 | 5 | 6 | 11 | 12 => Values::Bytes(values.extract()?),
            1 | 4 | 7 | 8 | 10 | 13 => Values::Integers(values.extract()?),
            2 => Values::Unsigned(values.extract()?),
            3 => Values::Doubles(values.extract()?),
            9 => {
                let (_, columns) = self
                    .7
                    .as_ref()
                    .ok_or_else(|| PyValueError::new_err("there are no columns of rows"))?;
                Values::Rows(columns.iter().map(Parts::values).collect::<PyResult<_>>()?)
            }
            kind => {
                return Err(PyValueError::new_err(format!(
                    "there is no kind {kind} of cells"
                )));
            }
        })
    }

    fn column<'a>(&'a self, values: &'a Values<'py>) -> PyResult<Column<'a>> {
        let Parts(kind, _, offsets, nulls, marks, number, pieces, nested) = self;
        let length = || match number {
            0 => Ok(Length::Absent),
            1 => Ok(Length::Zigzag),
            2 => Ok(Length::Plain),
            _ => Err(PyValueError::new_err(format!(
                "there is no form {number} of a length"
            ))),
        };
        let cells = match values {
            Values::Unsigned(values) => Cells::Unsigned(values.as_slice()?),
            Values::Doubles(values) => Cells::Thousandths(values.as_slice()?),
            Values::Integers(values) => {
                let values = values.as_slice()?;
                match kind {
                    1 => Cells::Integers(values),
                    4 if *number <= numbers::LARGEST_SCALE => Cells::Decimals(values, *number),
                    4 => {
                        return Err(PyValueError::new_err(format!(
                            "the scale {number} is too large"
                        )));
                    }
                    7 => Cells::Dates(values, Default::default()),
                    10 => Cells::Varints(values, length()?),
                    13 => Cells::Unscaled(values, length()?),
                    _ => Cells::Timestamps(values, *number != 0, Default::default()),
                }
            }
            Values::Bytes(bytes) if *kind == 5 => Cells::Booleans(bytes.as_slice()?, *number),
            Values::Bytes(bytes) if *kind == 11 => Cells::Fixed(bytes.as_slice()?, *number),
            Values::Bytes(data) => {
                let offsets = offsets
                    .as_ref()
                    .map_or(Ok([].as_slice()), |offsets| offsets.as_slice())?;
                let texts = Texts {
                    data: data.as_slice()?,
                    offsets,
                };
                match kind {
                    6 => Cells::Strings(texts),
                    12 => Cells::Bytes(texts, length()?),
                    _ => Cells::Texts(texts, places(pieces)?),
                }
            }
            Values::Rows(values) => {
                let index = match pieces.as_slice() {
                    [] => None,
                    [Indices::OfRow(index)] => Some(index.as_slice()?),
                    _ => return Err(PyValueError::new_err("rows have one index or none")),
                };
                let (gaps, columns) = nested
                    .as_ref()
                    .ok_or_else(|| PyValueError::new_err("there are no columns of rows"))?;
                Cells::Rows(Box::new(rows_of(gaps, columns, values)?), index, length()?)
            }
        };
        let nulls = nulls.as_ref().map(|nulls| nulls.as_slice()).transpose()?;
        Ok(Column {
            cells,
            nulls,
            marks: [&marks.0, &marks.1],
            null: &marks.2,
        })
    }
}

fn rows_of<'a, 'py>(
    gaps: &'a [PyBackedBytes],
    columns: &'a [Parts<'py>],
    values: &'a [Values<'py>],
) -> PyResult<Rows<'a>> {
    let gaps: Vec<&[u8]> = gaps.iter().map(|gap| &**gap).collect();
    let columns = columns
        .iter()
        .zip(values)
        .map(|(parts, values)| parts.column(values));
    Rows::new(&gaps, columns.collect::<PyResult<_>>()?)
        .ok_or_else(|| PyValueError::new_err("there is one gap more than columns"))
}

fn places<'a>(pieces: &'a [Indices]) -> PyResult<Vec<Piece<'a>>> {
    if pieces.len() > MOST_PIECES {
        return Err(PyValueError::new_err(format!(
            "a cell has at most {MOST_PIECES} pieces, not {}",
            pieces.len()
        )));
    }
    let piece = |indices: &'a Indices| {
        Ok(match indices {
            Indices::Same(index) => Piece::Same(*index),
            Indices::OfRow(indices) => Piece::OfRow(indices.as_slice()?),
        })
    };
    pieces.iter().map(piece).collect()
}

/// Rows of text out of columns.
#[pymodule(submodule, name = "json_rows")]
pub mod module {
    use super::*;

    /// Write rows from `row` on: gap 0, the cell of column 0, gap 1 and so on, ending with a gap.
    ///
    /// Returns the row after the last for which there was room.
    #[pyfunction]
    fn write<'py>(
        py: Python<'py>,
        gaps: Vec<PyBackedBytes>,
        columns: Vec<Parts<'py>>,
        row: usize,
        data: &Bound<'py, PyArray1<u8>>,
        offsets: &Bound<'py, PyArray1<i64>>,
    ) -> PyResult<usize> {
        let values = columns
            .iter()
            .map(Parts::values)
            .collect::<PyResult<Vec<_>>>()?;
        let mut rows = rows_of(&gaps, &columns, &values)?;
        let (mut data, mut offsets) = (data.try_readwrite()?, offsets.try_readwrite()?);
        let (data, offsets) = (data.as_slice_mut()?, offsets.as_slice_mut()?);
        Ok(py.detach(|| rows.write(row, data, offsets))?)
    }

    /// Whether all numbers that are not null have at most three decimals as their shortest text, and not more than 15 digits.
    #[pyfunction]
    fn are_thousandths(
        py: Python,
        values: PyReadonlyArray1<f64>,
        nulls: Option<PyReadonlyArray1<u8>>,
    ) -> PyResult<bool> {
        let values = values.as_slice()?;
        let nulls = nulls.as_ref().map(|nulls| nulls.as_slice()).transpose()?;
        if nulls.is_some_and(|nulls| nulls.len() != values.len()) {
            return Err(PyValueError::new_err(
                "the mask of nulls is as long as the values",
            ));
        }
        Ok(py.detach(|| numbers::are_thousandths(values, nulls)))
    }
}
