//! The bytes of a file: all of them in memory, or those of a local file, or those that a Python object reads.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::take;
use std::sync::Mutex;

use arrow_array::{Array, UInt8Array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_pyarrow::FromPyArrow;
use bytes::Bytes;
use pyo3::prelude::*;

use super::charge::lock;
use super::failure::{Failure, Result, damaged};

/// Bytes that are read at a time, at least, of a column of a file that is not in memory.
const WINDOW: usize = 256 << 10;
/// Bytes that are read of a local file for the header of a page.
const HEADER: usize = 4 << 10;
/// Bytes of a page of a local file that is read alone.
const LARGE_PAGE: usize = 64 << 10;

/// A file's bytes.
pub enum Source {
    Memory(Bytes),
    /// Threads that read it need no lock of the interpreter.
    Local {
        file: Mutex<File>,
        size: u64,
    },
    /// An object whose `read_range(at, count, most)` returns from `count` to `most` bytes as a `pyarrow.UInt8Array`.
    Object {
        object: Py<PyAny>,
        size: u64,
    },
}

/// Arrow's buffer as the owner of bytes.
struct Owner(Buffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of an array of `uint8`, without a copy.
pub fn bytes_of(array: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let array = UInt8Array::from(ArrayData::from_pyarrow_bound(array)?);
    if array.null_count() > 0 {
        return Err(damaged!("bytes that are null").into());
    }
    Ok(Bytes::from_owner(Owner(array.values().inner().clone())))
}

impl Source {
    pub fn size(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Local { size, .. } | Self::Object { size, .. } => *size,
        }
    }

    /// At least `count` bytes from `at` on, and up to `most` if they come without another request. `used` are bytes that are no longer needed,
    /// whose memory may be used for them.
    pub fn read(&self, at: u64, count: usize, most: usize, used: Bytes) -> Result<Bytes> {
        let end = at
            .checked_add(count as u64)
            .filter(|end| *end <= self.size());
        if end.is_none() {
            return Err(damaged!(
                "bytes {at} to {} of a file that has {}",
                at.saturating_add(count as u64),
                self.size()
            ));
        }
        let most = (most.max(count) as u64).min(self.size() - at) as usize;
        let bytes = match self {
            Self::Memory(bytes) => bytes.slice(at as usize..at as usize + most),
            Self::Local { file, .. } => {
                let mut bytes = if used.is_unique() {
                    Vec::from(used)
                } else {
                    vec![]
                };
                bytes.resize(most, 0);
                let mut file = lock(file);
                file.seek(SeekFrom::Start(at))?;
                let length = read_all(&mut file, &mut bytes)?;
                bytes.truncate(length);
                Bytes::from(bytes)
            }
            Self::Object { object, .. } => Python::attach(|py| {
                let object = object.bind(py);
                bytes_of(&object.call_method1("read_range", (at, count, most))?)
            })
            .map_err(Failure::Source)?,
        };
        if bytes.len() < count {
            return Err(damaged!(
                "the file ends at byte {}, and not at {}",
                at + bytes.len() as u64,
                self.size()
            ));
        }
        Ok(bytes)
    }
}

/// Fills `bytes` as far as the file goes, and returns how many bytes it has.
fn read_all(file: &mut File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// A part of a file that is read from its beginning to its end.
pub struct Window {
    at: u64,
    end: u64,
    buffered: Bytes,
}

impl Window {
    pub fn new(at: u64, end: u64) -> Self {
        Self {
            at,
            end,
            buffered: Bytes::new(),
        }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        (self.end - self.at) as usize
    }

    /// The next bytes, which stay: `count` of them at least.
    pub fn peek(&mut self, source: &Source, count: usize) -> Result<&[u8]> {
        // The part of a large page that is read with its header would be read again with the page.
        let is_long = matches!(source, Source::Local { .. }) && self.left() > WINDOW;
        self.fill(source, count, if is_long { HEADER } else { WINDOW })
    }

    fn fill(&mut self, source: &Source, count: usize, most: usize) -> Result<&[u8]> {
        if self.buffered.len() < count {
            let used = take(&mut self.buffered);
            self.buffered = source.read(self.at, count, most.min(self.left()), used)?;
        }
        Ok(&self.buffered)
    }

    /// The next `count` bytes.
    pub fn take(&mut self, source: &Source, count: usize) -> Result<Bytes> {
        // With the next header. The part of a large page that is read after this one would be read again.
        let is_alone = matches!(source, Source::Local { .. }) && count >= LARGE_PAGE;
        let most = if is_alone { 0 } else { WINDOW };
        self.fill(source, count, most.max(count + HEADER))?;
        self.at += count as u64;
        Ok(self.buffered.split_to(count))
    }

    /// Pass the next `count` bytes without reading them.
    pub fn skip(&mut self, count: usize) {
        self.at += count as u64;
        self.buffered = if count < self.buffered.len() {
            self.buffered.split_off(count)
        } else {
            Bytes::new()
        };
    }
}
