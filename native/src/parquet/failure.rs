//! Why a file cannot be read, and what each reason becomes in Python.

use std::{fmt, io};

use parquet::errors::ParquetError;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    cdfd_native,
    DamagedError,
    PyValueError,
    "A Parquet file is not what its footer or its pages say."
);
create_exception!(
    cdfd_native,
    NotTextError,
    PyValueError,
    "A text column of a Parquet file has bytes that are not UTF-8."
);
create_exception!(
    cdfd_native,
    TooLargeError,
    PyValueError,
    "A page, a row or the footer of a Parquet file needs more memory than is allowed."
);

/// Why reading ended.
#[derive(Debug)]
pub enum Failure {
    /// The file contradicts itself.
    Damaged(String),
    /// It needs more memory than is allowed.
    TooLarge(String),
    /// Text that is not UTF-8.
    NotText(String),
    /// The batch would become too large. It is read again with fewer rows.
    FewerRows,
    /// The source of its bytes raised this.
    Source(PyErr),
}

pub type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) | Self::TooLarge(what) | Self::NotText(what) => {
                formatter.write_str(what)
            }
            Self::FewerRows => formatter.write_str("the batch has too many rows"),
            Self::Source(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Failure {}

/// Through the crate `parquet`, which calls our pages and sources, and back.
impl From<Failure> for ParquetError {
    fn from(failure: Failure) -> Self {
        Self::External(Box::new(failure))
    }
}

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(inner) => match inner.downcast::<Self>() {
                Ok(failure) => *failure,
                Err(other) => Self::Damaged(other.to_string()),
            },
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<arrow_schema::ArrowError> for Failure {
    fn from(error: arrow_schema::ArrowError) -> Self {
        match error {
            arrow_schema::ArrowError::ExternalError(inner) => {
                match inner.downcast::<ParquetError>() {
                    Ok(known) => (*known).into(),
                    Err(inner) => match inner.downcast::<Self>() {
                        Ok(failure) => *failure,
                        Err(other) => Self::Damaged(other.to_string()),
                    },
                }
            }
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// With the system's number, which PyO3 leaves out: it says whether reading may succeed later.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Source(PyOSError::new_err((
            error.raw_os_error(),
            error.to_string(),
        )))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Damaged(what) => DamagedError::new_err(what),
            Failure::NotText(what) => NotTextError::new_err(what),
            Failure::TooLarge(what) => TooLargeError::new_err(what),
            Failure::FewerRows => TooLargeError::new_err("a row has too many values"),
            Failure::Source(error) => error,
        }
    }
}

/// `Failure::Damaged` with a formatted text.
macro_rules! damaged {
    ($($text:tt)*) => { $crate::parquet::failure::Failure::Damaged(format!($($text)*)) };
}

/// `Failure::TooLarge` with a formatted text.
macro_rules! too_large {
    ($($text:tt)*) => { $crate::parquet::failure::Failure::TooLarge(format!($($text)*)) };
}

pub(crate) use {damaged, too_large};
