//! Records of Kafka's record batches (format 2) out of arrays of keys and values, and the hashes of keys.
//!
//! ```text
//! length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
//! varint   00 00                         varint         varint             varint
//! ```
//!
//! The headers are their number, those that all records have, and those whose values are columns: a record whose value is null has none.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::room::{Room, Stop, Text, Texts, write_varint, zigzag};

/// How many records before it a record's value is fetched into the processor's cache, because the values of a partition lie apart.
const AHEAD: usize = 6;
/// Bytes of the numbers before a key, at most. So many are free beside the records.
const HEAD: usize = 32;

/// Let the processor fetch bytes while it does something else.
#[inline]
fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        // Lines of 64 bytes come one by one. After a few, the processor fetches the next ones by itself.
        let lines = bytes.iter().take(1024).step_by(64);
        lines.for_each(safe_arch::prefetch_t0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Texts of which some are null, and what is before and after each of the others.
struct Nullable<'a> {
    texts: Texts<'a>,
    nulls: Option<&'a [u8]>,
    around: [&'a [u8]; 2],
}

impl<'a> Nullable<'a> {
    /// The text of a row, and what is around it; `None` for null.
    #[inline]
    fn get(&self, row: usize) -> Result<Option<Field<'a>>, Stop> {
        if let Some(nulls) = self.nulls
            && *nulls.get(row).ok_or(Stop::OutOfBounds)? != 0
        {
            return Ok(None);
        }
        let (text, [before, after]) = (self.texts.get(row)?, self.around);
        let size = before.len() + text.size() + after.len();
        Ok(Some(Field {
            text,
            before,
            after,
            size,
        }))
    }
}

/// A key, a value, or the value of a header.
#[derive(Clone, Copy)]
struct Field<'a> {
    text: Text<'a>,
    before: &'a [u8],
    after: &'a [u8],
    size: usize,
}

impl Field<'_> {
    #[inline]
    fn put(&self, room: &mut Room) -> Result<(), Stop> {
        if self.size == self.text.size() {
            return room.put_text(self.text);
        }
        room.put(self.before)?;
        room.put_text(self.text)?;
        room.put(self.after)
    }
}

/// The length of a field in a record: -1 for null.
#[inline]
fn length(field: Option<Field>) -> i64 {
    field.map_or(-1, |field| field.size as i64)
}

/// The size of a field with its length.
#[inline]
fn field_size(field: Option<Field>) -> usize {
    field.map_or(1, |field| width(field.size as i64) + field.size)
}

#[inline]
fn put_bytes(room: &mut Room, field: Option<Field>) -> Result<(), Stop> {
    field.map_or(Ok(()), |field| field.put(room))
}

/// The parts of records.
struct Records<'a> {
    keys: Option<Nullable<'a>>,
    values: Option<Nullable<'a>>,
    /// How many headers all records have, and these headers.
    fixed: (usize, &'a [u8]),
    /// The other headers: the name with its length, and the values.
    columns: Vec<(&'a [u8], Nullable<'a>)>,
}

/// The size of a varint.
#[inline]
fn width(value: i64) -> usize {
    let number = zigzag(value);
    if number < 0x80 {
        1
    } else {
        (70 - number.leading_zeros() as usize) / 7
    }
}

#[inline]
fn put_varint(room: &mut Room, value: i64) -> Result<(), Stop> {
    room.put_short(|out: &mut [u8; HEAD]| write_varint(out, 0, zigzag(value)))
}

/// A record to be written.
struct Record<'a> {
    delta: i64,
    key: Option<Field<'a>>,
    value: Option<Field<'a>>,
    /// How many headers it has, and those whose values are columns.
    count: i64,
    headers: Vec<(&'a [u8], Field<'a>)>,
    /// Bytes that follow the size.
    size: usize,
}

impl<'a> Records<'a> {
    /// Write records one after the other, with offset deltas from 0 on, while they are within `limit` bytes; the first one always.
    ///
    /// Returns the number of records and of bytes: 0 and the size of the first record if there is no room for it.
    fn write(&self, rows: &[i64], limit: usize, data: &mut [u8]) -> Result<(usize, usize), Stop> {
        let mut room = Room::new(data, 0);
        let headers = Vec::with_capacity(self.columns.len());
        let mut record = Record {
            delta: 0,
            key: None,
            value: None,
            count: 0,
            headers,
            size: 0,
        };
        for (written, &row) in rows.iter().enumerate() {
            if let (Some(values), Some(&next)) = (&self.values, rows.get(written + AHEAD)) {
                fetch(values.texts.get(index(next)?)?.bytes());
            }
            record.delta = written as i64;
            self.read(index(row)?, &mut record)?;
            let start = room.end();
            let whole = width(record.size as i64) + record.size;
            if written > 0 && start + whole > limit {
                return Ok((written, start));
            }
            match self.write_record(&record, &mut room) {
                Ok(()) => debug_assert_eq!(room.end(), start + whole),
                Err(Stop::Full) if written == 0 => return Ok((0, whole + HEAD)),
                Err(Stop::Full) => return Ok((written, start)),
                Err(stop) => return Err(stop),
            }
        }
        Ok((rows.len(), room.end()))
    }

    #[inline]
    fn read(&self, row: usize, record: &mut Record<'a>) -> Result<(), Stop> {
        record.key = self.keys.as_ref().map_or(Ok(None), |keys| keys.get(row))?;
        record.value = self
            .values
            .as_ref()
            .map_or(Ok(None), |values| values.get(row))?;
        let (mut count, fixed) = self.fixed;
        let mut size = 2
            + width(record.delta)
            + field_size(record.key)
            + field_size(record.value)
            + fixed.len();
        record.headers.clear();
        for (name, values) in &self.columns {
            if let Some(value) = values.get(row)? {
                record.headers.push((name, value));
                size += name.len() + field_size(Some(value));
                count += 1;
            }
        }
        record.count = count as i64;
        record.size = size + width(record.count);
        Ok(())
    }

    #[inline]
    fn write_record(&self, record: &Record, room: &mut Room) -> Result<(), Stop> {
        room.put_short(|out: &mut [u8; HEAD]| {
            let place = write_varint(out, 0, zigzag(record.size as i64));
            out[place..place + 2].fill(0);
            let place = write_varint(out, place + 2, zigzag(record.delta));
            write_varint(out, place, zigzag(length(record.key)))
        })?;
        put_bytes(room, record.key)?;
        put_varint(room, length(record.value))?;
        put_bytes(room, record.value)?;
        put_varint(room, record.count)?;
        room.put(self.fixed.1)?;
        record.headers.iter().try_for_each(|(name, value)| {
            room.put(name)?;
            put_varint(room, value.size as i64)?;
            value.put(room)
        })
    }
}

fn index(row: i64) -> Result<usize, Stop> {
    usize::try_from(row).map_err(|_| Stop::OutOfBounds)
}

/// The hash of Kafka's default partitioner.
fn murmur2(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5BD1_E995;
    let (words, rest) = key.as_chunks::<4>();
    let mut hash = 0x9747_B28C ^ key.len() as u32;
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ (word ^ word >> 24).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let last = rest
            .iter()
            .rev()
            .fold(0, |last, &byte| last << 8 | u32::from(byte));
        hash = (hash ^ last).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

/// Texts as Python says them: bytes, offsets, a mask of nulls, and what is before and after each text.
type Column<'py> = (
    PyReadonlyArray1<'py, u8>,
    PyReadonlyArray1<'py, i64>,
    Option<PyReadonlyArray1<'py, u8>>,
    (Bound<'py, PyBytes>, Bound<'py, PyBytes>),
);

fn nullable<'a>((data, offsets, nulls, (before, after)): &'a Column) -> PyResult<Nullable<'a>> {
    let texts = Texts {
        data: data.as_slice()?,
        offsets: offsets.as_slice()?,
    };
    Ok(Nullable {
        texts,
        nulls: nulls.as_ref().map(|nulls| nulls.as_slice()).transpose()?,
        around: [before.as_bytes(), after.as_bytes()],
    })
}

/// Records of Kafka's record batches.
#[pymodule(submodule, name = "kafka_records")]
pub mod module {
    use super::*;

    /// Write the first of `rows` one after the other, within `limit` bytes. Returns how many, and their bytes.
    #[pyfunction]
    #[allow(clippy::too_many_arguments)] // one call for each batch, with all that it is made of
    fn write<'py>(
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
        keys: Option<Column<'py>>,
        values: Option<Column<'py>>,
        fixed: usize,
        headers: &[u8],
        columns: Vec<(Bound<'py, PyBytes>, Column<'py>)>,
        limit: usize,
        data: &Bound<'py, PyArray1<u8>>,
    ) -> PyResult<(usize, usize)> {
        let columns = columns
            .iter()
            .map(|(name, column)| Ok((name.as_bytes(), nullable(column)?)));
        let records = Records {
            keys: keys.as_ref().map(nullable).transpose()?,
            values: values.as_ref().map(nullable).transpose()?,
            fixed: (fixed, headers),
            columns: columns.collect::<PyResult<_>>()?,
        };
        let (rows, mut data) = (rows.as_slice()?, data.try_readwrite()?);
        let data = data.as_slice_mut()?;
        Ok(py.detach(|| records.write(rows, limit, data))?)
    }

    /// Write the hash of each text with what is around it.
    #[pyfunction]
    fn hashes<'py>(
        py: Python<'py>,
        keys: Column<'py>,
        out: &Bound<'py, PyArray1<u32>>,
    ) -> PyResult<()> {
        let Nullable {
            texts,
            around: [before, after],
            ..
        } = nullable(&keys)?;
        let mut out = out.try_readwrite()?;
        let out = out.as_slice_mut()?;
        if texts.offsets.len() != out.len() + 1 {
            return Err(PyValueError::new_err(
                "there is one offset more than hashes",
            ));
        }
        let bare = before.is_empty() && after.is_empty();
        let mut whole = before.to_vec();
        py.detach(|| {
            out.iter_mut().enumerate().try_for_each(|(number, hash)| {
                let text = texts.get(number)?.bytes();
                *hash = if bare {
                    murmur2(text)
                } else {
                    whole.truncate(before.len());
                    whole.extend_from_slice(text);
                    whole.extend_from_slice(after);
                    murmur2(&whole)
                };
                Ok::<(), Stop>(())
            })
        })?;
        Ok(())
    }
}
