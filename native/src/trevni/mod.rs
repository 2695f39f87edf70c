//! Blocks of Trevni columns. Memory is numpy's, and so the caller's.

mod damage;
mod decoder;
mod encoder;
mod lengths;
mod stored;
mod values;
mod varint;

use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::decoder::{Blocks, Decoder, Target};
use self::encoder::{Encoder, Place, TooShort, Values};
use self::stored::Codec;

/// A type's name in a file, and what it has in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Fixed4,
    Fixed8,
    String,
    Bytes,
}

impl Kind {
    fn named(name: &str) -> PyResult<Self> {
        match name {
            "null" => Ok(Self::Null),
            "boolean" => Ok(Self::Boolean),
            "int" => Ok(Self::Int),
            "long" => Ok(Self::Long),
            "fixed32" | "float" => Ok(Self::Fixed4),
            "fixed64" | "double" => Ok(Self::Fixed8),
            "string" => Ok(Self::String),
            "bytes" => Ok(Self::Bytes),
            _ => Err(PyValueError::new_err(format!("no type is named {name}"))),
        }
    }
}

/// Decodes the blocks of a column into arrays.
#[pyclass(module = "cdfd_native.trevni")]
struct BlockDecoder {
    kind: Kind,
    decoder: Decoder,
    lengths: Option<Py<PyArray1<i64>>>,
    values: Py<PyAny>,
    offsets: Py<PyArray1<i32>>,
}

type Counts<'py> = (
    usize,
    usize,
    usize,
    Option<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>)>,
);

#[pymethods]
impl BlockDecoder {
    #[new]
    #[pyo3(signature = (kind, lengths, values, offsets, *, codec, crc32, counted, runs))]
    #[expect(clippy::too_many_arguments, reason = "they have names")]
    fn new(
        kind: &str,
        lengths: Option<Py<PyArray1<i64>>>,
        values: Py<PyAny>,
        offsets: Py<PyArray1<i32>>,
        codec: &str,
        crc32: bool,
        counted: bool,
        runs: bool,
    ) -> PyResult<Self> {
        let kind = Kind::named(kind)?;
        let codec = Codec::named(codec)
            .ok_or_else(|| PyValueError::new_err(format!("no codec is named {codec}")))?;
        Ok(Self {
            kind,
            decoder: Decoder::new(codec, crc32, counted, runs),
            lengths,
            values,
            offsets,
        })
    }

    /// Decode more blocks, without the interpreter's lock.
    fn append(
        &mut self,
        py: Python<'_>,
        data: PyReadonlyArray1<u8>,
        starts: PyReadonlyArray1<i64>,
        stored: PyReadonlyArray1<i64>,
        sizes: PyReadonlyArray1<i64>,
        rows: PyReadonlyArray1<i64>,
    ) -> PyResult<()> {
        let blocks = Blocks {
            data: data.as_slice()?,
            starts: starts.as_slice()?,
            stored: stored.as_slice()?,
            sizes: sizes.as_slice()?,
            rows: rows.as_slice()?,
        };
        let values = self.values.bind(py);
        let decoder = &mut self.decoder;
        let mut lengths = self
            .lengths
            .as_ref()
            .map(|lengths| lengths.bind(py).try_readwrite())
            .transpose()?;
        let lengths = lengths
            .as_mut()
            .map(|lengths| lengths.as_slice_mut())
            .transpose()?;
        let result = match self.kind {
            Kind::Null => py.detach(|| decoder.append(blocks, lengths, Target::Nulls)),
            Kind::Int => {
                let mut values: PyReadwriteArray1<i32> = values.extract()?;
                let target = Target::Ints(values.as_slice_mut()?);
                py.detach(|| decoder.append(blocks, lengths, target))
            }
            Kind::Long => {
                let mut values: PyReadwriteArray1<i64> = values.extract()?;
                let target = Target::Longs(values.as_slice_mut()?);
                py.detach(|| decoder.append(blocks, lengths, target))
            }
            kind => {
                let mut values: PyReadwriteArray1<u8> = values.extract()?;
                let values = values.as_slice_mut()?;
                let mut offsets = self.offsets.bind(py).try_readwrite()?;
                let target = match kind {
                    Kind::Boolean => Target::Bits(values),
                    Kind::Fixed4 => Target::Fixed4(values),
                    Kind::Fixed8 => Target::Fixed8(values),
                    _ => Target::Text {
                        data: values,
                        offsets: offsets.as_slice_mut()?,
                        utf8: kind == Kind::String,
                    },
                };
                py.detach(|| decoder.append(blocks, lengths, target))
            }
        };
        result.map_err(|damage| PyValueError::new_err((damage.to_string(), self.decoder.blocks)))
    }

    /// How many lengths, values and bytes of text there are. Lengths of which there are more than room are returned as runs.
    fn finish<'py>(&mut self, py: Python<'py>) -> Counts<'py> {
        let count = self.decoder.count;
        let runs = self.decoder.lengths.runs.take();
        let runs = runs.map(|runs| (runs.each.into_pyarray(py), runs.ends.into_pyarray(py)));
        (self.decoder.lengths.count, count.values, count.bytes, runs)
    }
}

/// Encodes the rows of a column, block by block.
#[pyclass(module = "cdfd_native.trevni")]
struct BlockEncoder {
    kind: Kind,
    encoder: Encoder,
}

#[pymethods]
impl BlockEncoder {
    #[new]
    fn new(kind: &str, block_bytes: usize, block_rows: usize) -> PyResult<Self> {
        let kind = Kind::named(kind)?;
        Ok(Self {
            kind,
            encoder: Encoder::new(block_bytes, block_rows, kind == Kind::Null),
        })
    }

    #[getter]
    fn rows(&self) -> usize {
        self.encoder.rows
    }

    /// Append rows from `row` on, and for array columns values from `value` on, until the block is full or they end.
    #[expect(clippy::too_many_arguments, reason = "arrays come apart")]
    fn write(
        &mut self,
        py: Python<'_>,
        lengths: Option<PyReadonlyArray1<i64>>,
        values: &Bound<'_, PyAny>,
        offsets: PyReadonlyArray1<i32>,
        first: usize,
        entries: PyReadonlyArray1<i64>,
        row: usize,
        value: usize,
    ) -> PyResult<(usize, usize, bool)> {
        let lengths = lengths
            .as_ref()
            .map(|lengths| lengths.as_slice())
            .transpose()?;
        let entries = entries.as_slice()?;
        let mut place = Place { row, value };
        let encoder = &mut self.encoder;
        let full = match self.kind {
            Kind::Null => py.detach(|| encoder.append(lengths, Values::Nulls, entries, &mut place)),
            Kind::Int => {
                let values: PyReadonlyArray1<i32> = values.extract()?;
                let values = Values::Ints(values.as_slice()?);
                py.detach(|| encoder.append(lengths, values, entries, &mut place))
            }
            Kind::Long => {
                let values: PyReadonlyArray1<i64> = values.extract()?;
                let values = Values::Longs(values.as_slice()?);
                py.detach(|| encoder.append(lengths, values, entries, &mut place))
            }
            kind => {
                let values: PyReadonlyArray1<u8> = values.extract()?;
                let data = values.as_slice()?;
                let values = match kind {
                    Kind::Boolean => Values::Bits { data, first },
                    Kind::Fixed4 => Values::Fixed4(data),
                    Kind::Fixed8 => Values::Fixed8(data),
                    _ => Values::Text {
                        data,
                        offsets: offsets.as_slice()?,
                    },
                };
                py.detach(|| encoder.append(lengths, values, entries, &mut place))
            }
        };
        let full = full.map_err(|TooShort| {
            PyValueError::new_err("there are fewer values than lengths or entries say")
        })?;
        Ok((place.row, place.value, full))
    }

    /// The block so far, and begin the next one.
    fn take<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let block = PyBytes::new(py, self.encoder.take());
        self.encoder.clear();
        block
    }
}

/// Blocks of Trevni columns.
#[pymodule]
pub mod trevni {
    #[pymodule_export]
    use super::{BlockDecoder, BlockEncoder};
}
