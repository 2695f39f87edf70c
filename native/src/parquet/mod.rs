//! A reader of untrusted Parquet files, over the crate `parquet`.
//!
//! | module     | what                                                             |
//! |------------|------------------------------------------------------------------|
//! | `source`   | the bytes of a file                                              |
//! | `varint`   | numbers of variable length                                       |
//! | `thrift`   | page headers, and the sizes in a footer                          |
//! | `file`     | the footer: schema, and where columns are                        |
//! | `legacy`   | lists of two levels                                              |
//! | `codecs`   | decompression into as many bytes as a header promises            |
//! | `delta`    | how long the strings of a page are                               |
//! | `levels`   | where the rows of lists begin                                    |
//! | `charge`   | what pages and batches take                                      |
//! | `siblings` | whether columns agree about the lists and structs they are in    |
//! | `pages`    | the pages of a column, checked                                   |
//! | `columns`  | columns that are decoded together                                |
//! | `checks`   | what the crate does not check of values                          |
//! | `strings`  | strings for consumers without views                              |
//! | `batches`  | rows, from one file or several, by one thread or several         |
//! | `fuzzing`  | what fuzz targets call                                           |

mod batches;
mod charge;
mod checks;
mod codecs;
mod columns;
mod delta;
mod failure;
mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod legacy;
mod levels;
mod pages;
mod siblings;
mod source;
mod spares;
mod strings;
mod thrift;
mod varint;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_pyarrow::{IntoPyArrow, ToPyArrow};
use arrow_schema::{ArrowError, SchemaRef};
use numpy::PyReadonlyArray1;
use parquet::arrow::arrow_reader::RowSelector;
use parquet::basic::ColumnOrder;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub use failure::{DamagedError, NotTextError, TooLargeError};

use batches::Request;
use charge::lock;
use failure::{Failure, Result, damaged};
use file::OpenFile;
use source::Source;

/// Run what decodes, without the interpreter's lock. A panic is a damaged file.
fn guarded<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let done = py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(damaged!("decoding failed")))
    });
    Ok(done?)
}

/// An open Parquet file.
///
/// Args:
///     source: the name of a local file, its bytes as a `pyarrow.UInt8Array`, or an object with `read_range(at, count, most)`, which returns so.
///     size: bytes of the file.
///
/// Raises:
///     DamagedError, TooLargeError: the footer.
///     OSError: the file cannot be read.
#[pyclass(frozen, module = "cdfd_native.parquet")]
pub struct ParquetFile {
    file: Arc<OpenFile>,
}

#[pymethods]
impl ParquetFile {
    #[new]
    fn new(py: Python<'_>, source: Bound<'_, PyAny>, size: u64) -> PyResult<Self> {
        let source = if let Ok(name) = source.extract::<&str>() {
            let file = Mutex::new(File::open(name).map_err(Failure::from)?);
            Source::Local { file, size }
        } else if let Ok(bytes) = source::bytes_of(&source) {
            Source::Memory(bytes)
        } else {
            Source::Object {
                object: source.unbind(),
                size,
            }
        };
        Ok(Self {
            file: Arc::new(guarded(py, || OpenFile::open(source))?),
        })
    }

    /// The columns, with those of `dictionaries` as dictionaries.
    fn schema<'py>(
        &self,
        py: Python<'py>,
        dictionaries: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(py, || self.file.schema(&dictionaries))?.to_pyarrow(py)
    }

    /// For each row group, its rows and the bytes of its columns once decoded, as the footer says.
    #[getter]
    fn row_groups(&self) -> Vec<(i64, i64)> {
        self.file
            .metadata
            .row_groups()
            .iter()
            .map(|group| (group.num_rows(), group.total_byte_size()))
            .collect()
    }

    /// For each leaf column, its names with dots, its physical type, and whether a row can have several values.
    #[getter]
    fn leaves(&self) -> Vec<(String, String, bool)> {
        let leaves = self.file.leaves.iter();
        leaves
            .map(|leaf| {
                (
                    leaf.path.clone(),
                    leaf.physical.to_string(),
                    leaf.is_repeated(),
                )
            })
            .collect()
    }

    /// The program that wrote the file, as the footer names it.
    #[getter]
    fn created_by(&self) -> &str {
        self.file
            .metadata
            .file_metadata()
            .created_by()
            .unwrap_or_default()
    }

    /// The value of a key in the footer.
    fn value(&self, key: &str) -> Option<&str> {
        let known = self.file.metadata.file_metadata().key_value_metadata()?;
        known
            .iter()
            .find(|pair| pair.key == key)
            .and_then(|pair| pair.value.as_deref())
    }

    /// Where columns are, in the order of row groups: (row group, start, end).
    fn ranges(&self, py: Python<'_>, columns: Vec<String>) -> PyResult<Vec<(usize, u64, u64)>> {
        guarded(py, || {
            let leaves = self.file.leaves_of(&columns);
            let groups = 0..self.file.metadata.num_row_groups();
            let places = groups.flat_map(|group| leaves.iter().map(move |leaf| (group, *leaf)));
            places
                .map(|(group, leaf)| {
                    self.file
                        .chunk(group, leaf)
                        .map(|chunk| (group, chunk.start, chunk.end))
                })
                .collect()
        })
    }

    /// For each row group and column that is no list, the statistics: (lowest, highest, nulls, values), each of which may be unknown.
    fn statistics<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let leaves = self.file.leaves_of(&columns);
        let metadata = guarded(py, || self.file.with_statistics(&leaves))?;
        let mut groups = Vec::with_capacity(metadata.num_row_groups());
        for group in metadata.row_groups() {
            let statistics = PyDict::new(py);
            for leaf in leaves
                .iter()
                .filter(|leaf| !self.file.leaves[**leaf].is_repeated())
            {
                let column = group.column(*leaf);
                let known = column.statistics();
                let ordered = matches!(
                    metadata.file_metadata().column_order(*leaf),
                    ColumnOrder::TYPE_DEFINED_ORDER(_)
                );
                let bounds = known.filter(|known| ordered && !known.is_min_max_deprecated());
                let low = bounds.and_then(|known| known.min_bytes_opt());
                let high = bounds.and_then(|known| known.max_bytes_opt());
                let nulls = known.and_then(|known| known.null_count_opt());
                statistics.set_item(
                    &self.file.leaves[*leaf].path,
                    (low, high, nulls, column.num_values()),
                )?;
            }
            groups.push(statistics);
        }
        Ok(groups)
    }
}

/// Why a reader of batches has failed.
#[pyclass(frozen, module = "cdfd_native.parquet")]
pub struct Failed {
    failure: Arc<Mutex<Option<Failure>>>,
}

#[pymethods]
impl Failed {
    /// Raise the reader's failure, about which pyarrow knows nothing.
    fn raise_failure(&self) -> PyResult<()> {
        lock(&self.failure)
            .take()
            .map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Batches as Arrow's stream. It keeps the failure, and its error says nothing: the stream ends the process if the text of an error has a zero byte,
/// as names of a file can have.
struct Stream {
    batches: batches::Batches,
    failure: Arc<Mutex<Option<Failure>>>,
}

impl Iterator for Stream {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batches.next().map_err(|failure| {
            lock(&self.failure).replace(failure);
            ArrowError::ExternalError("Failed has the reason".into())
        });
        next.transpose()
    }
}

impl RecordBatchReader for Stream {
    fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }
}

/// Rows of files that have one schema, one after the other: a `pyarrow.RecordBatchReader`, and why it has failed.
///
/// Batches have bounded memory, whatever the files say. No object of ours may hold the reader or call it: pyarrow gives up the interpreter's lock
/// when it reads and when it is freed, PyO3 would not know, and would call and free the files' sources without the lock.
///
/// Args:
///     files: to read.
///     groups: for each file, the numbers of the row groups to read.
///     columns: top-level names, or dotted names within them.
///     dictionaries: top-level string columns to return as dictionaries.
///     rows: of a batch, at most.
///     threads: that decode columns, at most.
///     selection: how many rows are skipped, returned, skipped, and so on; None for all rows.
///
/// Raises:
///     DamagedError: a file is damaged, or the files cannot be read together. Reading raises it, too.
#[pyfunction]
#[pyo3(signature = (files, groups, columns, *, rows, dictionaries = vec![], threads = 1, selection = None))]
#[allow(clippy::too_many_arguments)]
fn read(
    py: Python<'_>,
    files: Vec<Bound<'_, ParquetFile>>,
    groups: Vec<Vec<usize>>,
    columns: Vec<String>,
    rows: usize,
    dictionaries: Vec<String>,
    threads: usize,
    selection: Option<PyReadonlyArray1<'_, u64>>,
) -> PyResult<(Py<PyAny>, Failed)> {
    // Callers choose the columns by the first file. It may have none of those that the others have, or no row groups.
    let footers = files
        .iter()
        .map(|file| file.get().file.metadata.file_metadata());
    let footers = footers.collect::<Vec<_>>();
    if footers
        .windows(2)
        .any(|pair| pair[0].schema() != pair[1].schema())
    {
        return Err(damaged!("files of different schemas are not read together").into());
    }
    let mut wanted = Vec::new();
    for (file, numbers) in files.iter().zip(groups) {
        let file = &file.get().file;
        for number in numbers {
            if number >= file.metadata.num_row_groups() {
                return Err(damaged!("there is no row group {number}").into());
            }
            wanted.push((Arc::clone(file), number));
        }
    }
    let runs = selection.as_ref().map(|runs| runs.as_slice()).transpose()?;
    let selection = runs.map(|runs| {
        let runs = runs.iter().enumerate();
        let selectors = runs.map(|(place, count)| RowSelector {
            row_count: *count as usize,
            skip: place % 2 == 0,
        });
        selectors.collect()
    });
    let batches = guarded(py, || {
        batches::Batches::new(Request {
            groups: wanted.into(),
            names: &columns,
            dictionaries: &dictionaries,
            selection,
            rows,
            threads,
        })
    })?;
    let failure = Arc::<Mutex<Option<Failure>>>::default();
    let stream: Box<dyn RecordBatchReader + Send> = Box::new(Stream {
        batches,
        failure: Arc::clone(&failure),
    });
    Ok((stream.into_pyarrow(py)?.unbind(), Failed { failure }))
}

/// Parquet files, read without trusting them.
#[pymodule(submodule, name = "parquet")]
pub mod parquet_module {
    #[pymodule_export]
    use super::{DamagedError, Failed, NotTextError, ParquetFile, TooLargeError, read};
}
